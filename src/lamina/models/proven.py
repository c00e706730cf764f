"""What was proven of a model. A process proves it once, and so do all jobs of a run together, until something changes.

What counts as a change: the files of the model, its dtype and kind of device, the versions of torch and transformers,
and every byte of the code that proves and of what is proven.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from transformers import PreTrainedModel

from lamina.models import devices, remembered
from lamina.models.structure import layers_of

_CODE = ("models", "sweep", "data/calibrations.py", "streams/batches.py", "variant.py")
_LIBRARY = Path(__file__).resolve().parents[1]

_here: "WeakKeyDictionary[PreTrainedModel, dict[str, Any]]" = WeakKeyDictionary()
_stamps: "WeakKeyDictionary[PreTrainedModel, str]" = WeakKeyDictionary()


def loaded(model: PreTrainedModel, manifest: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Note that a model is as its files are, so that its proofs hold for all jobs that load these files."""
    places = sorted({str(devices.place_of(layer)) for layer in layers_of(model)})
    named = [torch.cuda.get_device_name(place) if place.startswith("cuda") else place for place in places]
    facts = [
        str(Path(manifest["path"]).resolve()),
        *(dict(digests), manifest["trust_remote_code"]),
        *(str(model.dtype), getattr(model.config, "_attn_implementation", None)),
        *(named, devices.streams(model)),
        *(torch.__version__, transformers.__version__, code_digest(_LIBRARY)),
    ]
    _stamps[model] = json.dumps(facts, sort_keys=True)


def found(model: PreTrainedModel, what: str) -> Any | None:
    """What was proven under this name, by this process or another job; None if nothing was."""
    here = _here.setdefault(model, {})
    if what not in here and model in _stamps:
        here[what] = remembered.recall(f"{what} {_stamps[model]}", _stamps[model])
    return here.get(what)


def note(model: PreTrainedModel, what: str, proven: Any) -> None:
    """Keep a result about a model, which JSON can hold, under a name."""
    _here.setdefault(model, {})[what] = proven
    if model in _stamps:
        remembered.keep(f"{what} {_stamps[model]}", _stamps[model], proven)


@cache
def code_digest(library: Path) -> str:
    """SHA-256 of the code that proves, and of the code about which something is proven."""
    digest = hashlib.sha256()
    for name in _CODE:
        place = library / name
        for file in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{file.name}\n".encode() + file.read_bytes() + b"\n")
    return digest.hexdigest()

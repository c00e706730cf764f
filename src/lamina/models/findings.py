"""What was found out about a model in memory, so that nothing is proven twice.

A finding holds for texts of up to so many tokens. Rule check_model writes the findings on a model into check.json; a
job that loads the same model in the same way begins with them, and proves what they leave open.
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from transformers import PreTrainedModel

from lamina.models import devices
from lamina.models.structure import layers_of

_findings: "WeakKeyDictionary[PreTrainedModel, dict[str, dict[str, Any]]]" = WeakKeyDictionary()


def found(model: PreTrainedModel, what: str, tokens: int = 0) -> Any | None:
    """The value found under a name for texts of at least this number of tokens; None if there is none."""
    finding = _findings.get(model, {}).get(what)
    return finding["value"] if finding and finding["tokens"] >= tokens else None


def note(model: PreTrainedModel, what: str, value: Any, tokens: int = 0) -> None:
    """Store a value, which JSON can hold, under a name. A finding on longer texts stays."""
    if found(model, what, tokens) is None:
        _findings.setdefault(model, {})[what] = {"tokens": tokens, "value": value}


def written(model: PreTrainedModel, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """All findings on a model, with the conditions under which they hold."""
    return {"conditions": _conditions(model, manifest), "findings": _findings.get(model, {})}


def use(model: PreTrainedModel, manifest: Mapping[str, Any], check: Mapping[str, Any]) -> None:
    """Begin with the findings that `written` gave, if their conditions are those of this model."""
    if check["conditions"] == _conditions(model, manifest):
        _findings[model] = {name: dict(finding) for name, finding in check["findings"].items()}


def _conditions(model: PreTrainedModel, manifest: Mapping[str, Any]) -> dict[str, Any]:
    places = sorted({str(devices.place_of(layer)) for layer in layers_of(model)})
    return {
        "weights_sha256": manifest["weights_sha256"],
        "settings_sha256": manifest["settings_sha256"],
        "dtype": str(model.dtype),
        "attention": getattr(model.config, "_attn_implementation", None),
        "devices": [torch.cuda.get_device_name(place) if place.startswith("cuda") else place for place in places],
        "streamed": devices.streams(model),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }

"""The safetensors file of fits that several repairs of a selector got from one pass.

Each repair stands there under a hash of all that its own job is told. A job takes its fits from the file only if they
were made for exactly this; so a repair whose options or code have changed is fitted anew, and no other is.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from lamina.models.boundary import Boundary
from lamina.repair.protocol import Tensors
from lamina.store import parquet as store

Fits = dict[Boundary, tuple[Tensors, dict[str, Any]]]
"""What was fitted for each boundary, and the columns of table `patches`."""


def key(told: str) -> str:
    """The hash of what a job is told, as the rule hands it over."""
    return hashlib.sha256(told.strip().encode()).hexdigest()


def save(path: str | Path, fits: Mapping[str, Fits]) -> None:
    """Write the fits of each repair, by its key."""
    named: dict[str, torch.Tensor] = {}
    facts: dict[str, dict[str, Any]] = {}
    for of, by_boundary in fits.items():
        facts[of] = {f"{start}-{end}": columns for (start, end), (_, columns) in by_boundary.items()}
        for (start, end), (tensors, _) in by_boundary.items():
            named |= {f"{of}/{start}-{end}/{name}": tensor.contiguous() for name, tensor in tensors.items()}
    store.write_tensors(path, named, {"facts": json.dumps(facts)})


def load(path: str | Path, of: str) -> Fits | None:
    """The fits of the repair with a key; None if the file has none for it."""
    with store.reading(path), safe_open(str(path), framework="pt") as handle:
        facts = json.loads(store.tensors_metadata(handle)["facts"]).get(of)
        if facts is None:
            return None
        tensors: dict[str, dict[str, torch.Tensor]] = {boundary: {} for boundary in facts}
        for name in handle.keys():  # noqa: SIM118
            owner, boundary, leaf = name.split("/", 2)
            if owner == of:
                tensors[boundary][leaf] = handle.get_tensor(name)
    places = {boundary: tuple(map(int, boundary.split("-"))) for boundary in facts}
    return {(places[b][0], places[b][1]): (tensors[b], columns) for b, columns in facts.items()}

"""The safetensors file of a fitted repair.

It holds tensors `removed={n}/{start}-{end}/{name}` for all sizes of one selector. Its metadata name the method that
uses the tensors, and say for some sizes why there are none.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.repair.protocol import Fitted, Tensors
from lamina.store import parquet as store

_KEY = re.compile(r"removed=(\d+)/(\d+(?:[.]5)?)-(\d+(?:[.]5)?)/(.+)")


def tensors(removed: int, fitted: Mapping[Boundary, Tensors]) -> dict[str, torch.Tensor]:
    """The fitted tensors of one plan under their names in the file, on the CPU, in float32 as all fits are."""
    return {
        # Cloned, because plans of several sizes share a boundary and safetensors refuses shared memory.
        f"removed={removed}/{start}-{end}/{name}": tensor.detach()
        .to("cpu", torch.float32, copy=True)
        .contiguous()
        for (start, end), named in fitted.items()
        for name, tensor in named.items()
    }


def _place(written: str) -> float:
    return float(written) if "." in written else int(written)


def save(
    path: str | Path,
    method: str,
    named: Mapping[str, torch.Tensor],
    reasons: Mapping[int, str] | None = None,
) -> None:
    """Write a patch file; `reasons` says, by size, why a plan without tensors cannot be repaired."""
    store.write_tensors(path, named, {"method": method, "refused": json.dumps(dict(reasons or {}))})


def refused(path: str | Path, removed: int) -> str | None:
    """Why the plan of size `removed` cannot be repaired; None if it can."""
    with store.reading(path), safe_open(str(path), framework="pt") as handle:
        reasons = json.loads(store.tensors_metadata(handle).get("refused", "{}"))
    return reasons.get(str(removed))


def load(path: str | Path, removed: int) -> dict[Boundary, Fitted]:
    """The fitted repairs of the plan of size `removed`, ready for `materialise`.

    Raises LaminaError if the file has no patch of that size, or holds a tensor that is not part of a patch.
    """
    tensors: dict[Boundary, dict[str, torch.Tensor]] = {}
    with store.reading(path), safe_open(str(path), framework="pt") as handle:
        method = store.tensors_metadata(handle).get("method")
        for key in handle.keys():  # noqa: SIM118
            match = _KEY.fullmatch(key)
            if match is None or method is None:
                raise LaminaError(
                    f"{path} holds '{key}', which is not part of a patch. Run fit_patch again."
                )
            if int(match[1]) == removed:
                tensors.setdefault((_place(match[2]), _place(match[3])), {})[match[4]] = (
                    handle.get_tensor(key)
                )
    if not tensors:
        raise LaminaError(f"{path} holds no patch of size removed={removed}. Run fit_patch again.")
    return {boundary: Fitted(str(method), named) for boundary, named in tensors.items()}

"""Fitted patches and their safetensors file.

A file holds `removed={n}/{start}-{end}/operator`, and `…/bias` where the fit has one, for all sizes of one selector.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lamina.errors import LaminaError
from lamina.models.variant import Boundary, Patch

_KEY = re.compile(r"removed=(\d+)/(\d+)-(\d+)/(operator|bias)")


@dataclass(frozen=True)
class Fit:
    """What a recovery's `fit` returns for one boundary.

    Attributes
    ----------
    patch : the repair, fitted on all samples.
    validated : the same repair fitted without the held-out samples; every reported error is measured with this one.
    ridge : regularisation chosen, relative to the mean eigenvalue of XᵀX; None where the method has none.
    ridge_at_edge : the choice is the first or last of the grid, so a better one may lie outside.
    rank : rank of the operator at most.
    fit_error_before, fit_error, heldout_error_before, heldout_error : ‖Y - Ŷ‖ / ‖Y‖ with Ŷ the stream as the pruned
        model leaves it (before) or as the patch repairs it, Frobenius norms over the tokens of a split.
    """

    patch: Patch
    validated: Patch
    ridge: float | None
    ridge_at_edge: bool | None
    rank: int
    fit_error_before: float
    fit_error: float
    heldout_error_before: float
    heldout_error: float


def tensors(removed: int, patches: Mapping[Boundary, Patch]) -> dict[str, torch.Tensor]:
    """The patches of one plan under the names of the file, on the CPU."""
    named = {}
    for (start, end), patch in patches.items():
        stem = f"removed={removed}/{start}-{end}"
        named[f"{stem}/operator"] = _stored(patch.operator)
        if patch.bias is not None:
            named[f"{stem}/bias"] = _stored(patch.bias)
    return named


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    # Cloned, because plans of several sizes share a boundary and safetensors refuses shared memory.
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


def save(path: str | Path, named: Mapping[str, torch.Tensor]) -> None:
    """Write a patch file through a temporary name; an empty one says that every plan was refused."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(dict(named), temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | Path, removed: int) -> dict[Boundary, Patch]:
    """The patches of the plan of size `removed`.

    Raises
    ------
    LaminaError
        If the file holds no patch of that size, or something that is not a patch.
    """
    found: dict[Boundary, dict[str, torch.Tensor]] = {}
    with safe_open(str(path), framework="pt") as handle:
        for key in handle.keys():  # noqa: SIM118
            match = _KEY.fullmatch(key)
            if match is None:
                raise LaminaError(f"{path} holds '{key}', which is not part of a patch. Run fit_patch again.")
            if int(match[1]) == removed:
                found.setdefault((int(match[2]), int(match[3])), {})[match[4]] = handle.get_tensor(key)
    if not found or any("operator" not in parts for parts in found.values()):
        raise LaminaError(f"{path} holds no complete patch of size removed={removed}. Run fit_patch again.")
    return {boundary: Patch(parts["operator"], parts.get("bias")) for boundary, parts in found.items()}

"""The safetensors file of a fitted repair, for all plan sizes of one selector.

Its tensors are named `removed={n}/{start}-{end}/{name}`. Its metadata hold the method that uses the
tensors (`method`), the reasons why plans have no repair, by size (`refused`), and the sizes of the
plans that remove nothing, which need no repair (`whole`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.repairs.protocol import Fitted, Tensors
from lamina.store import parquet

# Boundaries are whole numbers, or end in .5 between attention and MLP.
_TENSOR_NAME = re.compile(
    r"removed=(?P<removed>-?\d+)/(?P<start>\d+(?:[.]5)?)-(?P<end>\d+(?:[.]5)?)/(?P<name>.+)"
)


def name_tensors(
    removed: int, tensors_by_boundary: Mapping[Boundary, Tensors]
) -> dict[str, torch.Tensor]:
    """The fitted tensors of the plan of one size by their names in the file, float32 on the CPU."""
    tensors_in_file: dict[str, torch.Tensor] = {}
    for (start, end), boundary_tensors in tensors_by_boundary.items():
        for name, tensor in boundary_tensors.items():
            # Plans of several sizes share a boundary, and safetensors refuses shared memory.
            host_tensor = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
            tensors_in_file[f"removed={removed}/{start}-{end}/{name}"] = host_tensor
    return tensors_in_file


def write_patch(
    path: str | Path,
    method: str,
    named_tensors: Mapping[str, torch.Tensor],
    reason_by_size: Mapping[int, str] | None = None,
    job_description: str = "",
    whole_sizes: Sequence[int] = (),
) -> None:
    """Write a patch file.

    named_tensors: The results of `name_tensors` for all sizes.
    reason_by_size: Why a plan cannot be repaired, by its size.
    job_description: Which job writes the file.
    whole_sizes: Sizes of plans that only move layers: nothing is removed from their models.
    """
    metadata = {
        "method": method,
        "refused": json.dumps(dict(reason_by_size or {})),
        "whole": json.dumps(list(whole_sizes)),
    }
    parquet.write_tensors(path, named_tensors, metadata, job_description)


def patch_refusal(path: str | Path, removed: int) -> str | None:
    """Why the plan of size `removed` cannot be repaired; None if it can."""
    with parquet.explaining_damage(path), safe_open(str(path), framework="pt") as handle:
        reason_by_size = json.loads(parquet.tensors_metadata(handle).get("refused", "{}"))
    return reason_by_size.get(str(removed))


def read_patch(path: str | Path, removed: int) -> dict[Boundary, Fitted]:
    """Read the fitted repairs of the plan of size `removed`, ready for `materialise`.

    There are none for a plan that removes nothing.

    Raises LaminaError if the file has no patch of that size, or a tensor that is not part of one.
    """
    tensors_by_boundary: dict[Boundary, dict[str, torch.Tensor]] = {}
    with parquet.explaining_damage(path), safe_open(str(path), framework="pt") as handle:
        metadata = parquet.tensors_metadata(handle)
        method = metadata.get("method")
        for key in handle.keys():  # noqa: SIM118
            match = _TENSOR_NAME.fullmatch(key)
            if match is None or method is None:
                raise LaminaError(
                    f"{path} is not a patch file: it holds '{key}'. Run rule fit_patch again."
                )
            if int(match["removed"]) != removed:
                continue
            boundary = (_parse_position(match["start"]), _parse_position(match["end"]))
            boundary_tensors = tensors_by_boundary.setdefault(boundary, {})
            boundary_tensors[match["name"]] = handle.get_tensor(key)

    is_whole = removed in json.loads(metadata.get("whole", "[]"))
    if not tensors_by_boundary and not is_whole:
        raise LaminaError(
            f"{path} holds no patch for size removed={removed}. Run rule fit_patch again."
        )
    return {
        boundary: Fitted(str(method), boundary_tensors)
        for boundary, boundary_tensors in tensors_by_boundary.items()
    }


def _parse_position(text: str) -> float:
    """A boundary such as `3`, an int, or `3.5`, a float."""
    return float(text) if "." in text else int(text)

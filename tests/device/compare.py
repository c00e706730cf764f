"""Where two results of a stage differ."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch


def list_differences(
    expected: Any, result: Any, relative: float = 1e-3, absolute: float = 1e-4, path: str = ""
) -> list[str]:
    """The positions where results differ by more than the tolerance, each with both values."""
    if isinstance(expected, torch.Tensor):
        expected = expected.tolist()
        result = result.tolist()

    entries: Iterable[tuple[str, Any, Any]]
    if isinstance(expected, Mapping):
        if expected.keys() != result.keys():
            keys = sorted(map(str, expected.keys() ^ result.keys()))
            return [f"{path}: keys {keys}"]
        entries = [(f"{path}.{key}", expected[key], result[key]) for key in expected]
    elif isinstance(expected, (Sequence, np.ndarray)) and not isinstance(expected, str):
        if len(expected) != len(result):
            return [f"{path}: {len(expected)} and {len(result)} entries"]
        indices = range(len(expected))
        entries = [(f"{path}[{index}]", expected[index], result[index]) for index in indices]
    else:
        is_same = _are_close(expected, result, relative, absolute)
        return [] if is_same else [f"{path}: {expected} and {result}"]

    differences: list[str] = []
    for entry_path, expected_entry, result_entry in entries:
        differences += list_differences(
            expected_entry, result_entry, relative, absolute, entry_path
        )
    return differences


def _are_close(expected: Any, result: Any, relative: float, absolute: float) -> bool:
    floats = (float, np.floating)
    if isinstance(expected, floats) and isinstance(result, floats):
        return bool(np.isclose(expected, result, rtol=relative, atol=absolute, equal_nan=True))
    return bool(expected == result)

"""Where two results of a stage differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def differences(
    one: Any, other: Any, relative: float = 1e-3, absolute: float = 1e-4, at: str = ""
) -> list[str]:
    """The places where results differ, with both values; numbers may differ by so much."""
    if isinstance(one, torch.Tensor):
        one, other = one.tolist(), other.tolist()
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return [f"{at}: keys {sorted(map(str, one.keys() ^ other.keys()))}"]
        return [
            d
            for key in one
            for d in differences(one[key], other[key], relative, absolute, f"{at}.{key}")
        ]
    if isinstance(one, (Sequence, np.ndarray)) and not isinstance(one, str):
        if len(one) != len(other):
            return [f"{at}: {len(one)} and {len(other)} entries"]
        pairs = enumerate(zip(one, other, strict=True))
        return [
            d
            for number, (a, b) in pairs
            for d in differences(a, b, relative, absolute, f"{at}[{number}]")
        ]
    if isinstance(one, (float, np.floating)) and isinstance(other, (float, np.floating)):
        same = np.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)
    else:
        same = one == other
    return [] if same else [f"{at}: {one} and {other}"]

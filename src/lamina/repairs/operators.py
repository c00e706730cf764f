"""Describes the operator M of a fitted linear repair, h ← h + h M, by a few numbers."""

from typing import TypedDict

import torch

from lamina.models.boundary import Patch


class OperatorShape(TypedDict):
    """Columns of table `patches` that follow from M alone."""

    antisymmetric_share: float
    singular_values: list[float]
    effective_rank: float


def describe_operator(patch: Patch) -> OperatorShape:
    """The shape of a patch's operator."""
    singular_values = torch.linalg.svdvals(patch.matrix.float())
    return {
        "antisymmetric_share": antisymmetric_share(patch.matrix),
        "singular_values": singular_values.tolist(),
        "effective_rank": effective_rank(singular_values),
    }


def antisymmetric_share(operator: torch.Tensor) -> float:
    """Share of ‖M‖_F² in (M - Mᵀ)/2, for M (C, C); 0 for a zero operator.

    No symmetric patch can reach this share (arXiv 2605.15491).
    """
    squared_norm = float(operator.double().square().sum())
    if not squared_norm > 0:
        return 0.0
    antisymmetric = (operator - operator.T).double() / 2
    return float(antisymmetric.square().sum()) / squared_norm


def effective_rank(singular_values: torch.Tensor) -> float:
    """The exponential of the entropy of the squared singular values (C,), as shares of their sum.

    It is C if all C singular values are equal; tiny ones hardly count. It is 0 for a zero operator.
    """
    squared_values = singular_values.double().square()
    if not squared_values.sum() > 0:
        return 0.0
    value_shares = squared_values / squared_values.sum()
    return float(torch.special.entr(value_shares).sum().exp())

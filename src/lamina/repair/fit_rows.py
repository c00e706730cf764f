"""The record of a fit: the rows of table `patches`."""

from collections.abc import Mapping
from typing import Any

import torch

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.surgery import removed_layers, runs
from lamina.models.units import parse
from lamina.repair import protocol
from lamina.study.variant import Variant


def boundaries(plan: Mapping[str, Any], depth: int) -> list[Boundary]:
    """Boundaries of the runs of whole layers that a plan removes.

    Raises LaminaError if the plan removes sub-layers, for which there are no patches yet.
    """
    if any(component in ("attention", "mlp") for _, component in map(parse, plan["units"])):
        raise LaminaError(
            f"selector '{plan['selector']}' removes {plan.get('kind', 'sub-layer')} units, and a patch repairs removed "
            "layers only. Use repairs: [none] for it, or a selector with units: layer."
        )
    return runs(removed_layers(plan["units"]), depth)


def row(variant: Variant, boundary: Boundary, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One row of table `patches`; `facts` come from the fit, from `shape`, and from `lamina.repair.check`."""
    keys = variant.row() | {"boundary": f"{boundary[0]}-{boundary[1]}", "start": boundary[0], "end": boundary[1]}
    return {**keys, **facts}


def facts(method: protocol.Repair, fit: protocol.Fit, checked: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a fit: its own columns, those of `shape`, and those that `lamina.repair.check` measured."""
    return {**fit.facts, **shape(method.as_patch(fit.tensors)), **checked}


def shape(patch: Patch | None) -> dict[str, Any]:
    """The shape of a repair that is a linear map M of the stream; nothing for other repairs."""
    if patch is None:
        return {}
    values = torch.linalg.svdvals(patch.operator.float())
    return {
        "antisymmetric_share": antisymmetric_share(patch.operator),
        "singular_values": values.tolist(),
        "effective_rank": effective_rank(values),
    }


def antisymmetric_share(operator: torch.Tensor) -> float:
    """Share of ‖M‖² in (M - Mᵀ)/2, which no symmetric patch can reach; 0 for a zero operator (C, C)."""
    total = float(operator.double().square().sum())
    skew = (operator - operator.T).double() / 2
    return float(skew.square().sum()) / total if total > 0 else 0.0


def effective_rank(values: torch.Tensor) -> float:
    """exp of the entropy of the squares of singular values (C,), as shares of their sum; 0 for a zero operator.

    C equal directions have rank C, and directions with very small values do not count.
    """
    squares = values.double().square()
    shares = squares / squares.sum().clamp_min(torch.finfo(squares.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp()) if squares.sum() > 0 else 0.0

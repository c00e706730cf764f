"""What is recorded of a fit: the rows of table `patches`."""

from collections.abc import Mapping
from typing import Any

import torch

from lamina.errors import LaminaError
from lamina.models.surgery import removed_layers, runs
from lamina.models.variant import Boundary, Patch
from lamina.recovery.protocol import Fit
from lamina.streams.moments import AbsoluteErrors
from lamina.variant import Variant


def boundaries(plan: Mapping[str, Any], depth: int) -> list[Boundary]:
    """Boundaries of the runs of whole layers that a plan removes.

    Raises
    ------
    LaminaError
        If the plan removes sub-layers, around which no patch is fitted yet.
    """
    if len(removed_layers(plan["units"])) != len(plan["units"]):
        raise LaminaError(
            f"selector '{plan['selector']}' removes {plan.get('kind', 'sub-layer')} units, and a patch repairs removed "
            "layers only. Use recoveries: [none] for it, or a selector with units: layer."
        )
    return runs(removed_layers(plan["units"]), depth)


def row(
    variant: Variant, boundary: Boundary, fit: Fit, patch: Patch | None, errors: AbsoluteErrors | None
) -> dict[str, Any]:
    """One row of table `patches`; relative errors are ‖Y - Ŷ‖ / ‖Y‖, absolute ones are over held-out tokens.

    What only a linear map of the stream has (`patch`, its `errors`) is left out for other repairs.
    """
    found = variant.row() | {"boundary": f"{boundary[0]}-{boundary[1]}", "start": boundary[0], "end": boundary[1]}
    found |= fit.facts
    if patch is not None:
        found["antisymmetric_share"] = antisymmetric_share(patch.operator)
    if errors is not None:
        found |= {"mae_before": float(errors.before.mean()), "mae_after": float(errors.after.mean())}
        found |= {"channel_mae_before": errors.before.tolist(), "channel_mae_after": errors.after.tolist()}
    return found


def antisymmetric_share(operator: torch.Tensor) -> float:
    """Share of ‖M‖² in (M - Mᵀ)/2, which no symmetric patch can reach; 0 for a zero operator (C, C)."""
    total = float(operator.double().square().sum())
    skew = (operator - operator.T).double() / 2
    return float(skew.square().sum()) / total if total > 0 else 0.0

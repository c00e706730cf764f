"""What is recorded of a fit: the rows of table `patches`."""

from collections.abc import Mapping
from typing import Any

import torch

from lamina.errors import LaminaError
from lamina.models.surgery import removed_layers, runs
from lamina.models.variant import Boundary
from lamina.recovery.patch import Fit
from lamina.streams.moments import AbsoluteErrors


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
    plan: Mapping[str, Any],
    recovery: str,
    boundary: Boundary,
    fit: Fit,
    errors: AbsoluteErrors,
    counts: Mapping[str, int],
) -> dict[str, Any]:
    """One row of table `patches`; relative errors are ‖Y - Ŷ‖ / ‖Y‖, absolute ones are over held-out tokens."""
    operator, bias = fit.patch.operator, fit.patch.bias
    return {
        **{key: plan[key] for key in ("model", "calibration", "selector", "removed")},
        "recovery": recovery,
        "healing": "none",
        "boundary": f"{boundary[0]}-{boundary[1]}",
        "start": boundary[0],
        "end": boundary[1],
        "ridge": fit.ridge,
        "ridge_at_edge": fit.ridge_at_edge,
        "rank": fit.rank,
        "fit_error_before": fit.fit_error_before,
        "fit_error": fit.fit_error,
        "heldout_error_before": fit.heldout_error_before,
        "heldout_error": fit.heldout_error,
        "mae_before": float(errors.before.mean()),
        "mae_after": float(errors.after.mean()),
        "channel_mae_before": errors.before.tolist(),
        "channel_mae_after": errors.after.tolist(),
        "antisymmetric_share": antisymmetric_share(operator),
        "parameters": operator.numel() + (0 if bias is None else bias.numel()),
        **counts,
    }


def antisymmetric_share(operator: torch.Tensor) -> float:
    """Share of ‖M‖² in (M - Mᵀ)/2, which no symmetric patch can reach; 0 for a zero operator (C, C)."""
    total = float(operator.double().square().sum())
    skew = (operator - operator.T).double() / 2
    return float(skew.square().sum()) / total if total > 0 else 0.0

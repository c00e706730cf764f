"""What the tests of healings train: tiny samples with something to learn, plans, patches, and short
options.
"""

from collections.abc import Sequence
from typing import Any

import torch

from lamina.data.calibrations import Row, Sample
from lamina.healing.training import TrainingRow
from lamina.repairs.protocol import Fitted
from tests.given import tiny

PLAN = {"units": ["2"], "removed": 1}
REPAIRED_UNITS = ["1", "2", "4"]  # removed layers that leave the boundaries of `fitted_patches`
PATCH_TENSORS = {"patch_operator", "patch_bias", "patch_down", "patch_up"}
FAST_OPTIONS: dict[str, Any] = {
    "rank": 4,
    "alpha": 8.0,
    "dropout": 0.0,
    "learning_rate": 1e-2,
    "epochs": 4,
    "batch": 8,
    "warmup_steps": 2,
}


def make_samples(count: int = 48, kind: str = "choices") -> list[Sample]:
    """Samples whose answer says whether the first token of the context is even."""
    samples = []
    for index in range(count):
        context = tuple(tiny.tokens(1, 4 + index % 5, seed=index)[0].tolist())
        right_row = Row(context, (4 + context[0] % 2,), 2)
        wrong_row = Row(context, (12,), 2)
        rows = (right_row, wrong_row) if kind == "choices" else (right_row,)
        samples.append(Sample(index, kind, 0, rows, str(index)))
    return samples


def fitted_patches() -> dict[tuple[int, int], Fitted]:
    """Patches as a repair leaves them.

    One has a bias and is before a layer; the other is two factors before the final norm.
    """
    generator = torch.Generator().manual_seed(5)
    operator = torch.randn(32, 32, generator=generator) / 20
    down = torch.randn(32, 6, generator=generator) / 20
    up = torch.randn(6, 32, generator=generator) / 20
    bias = torch.randn(32, generator=generator) / 10
    return {
        (1, 3): Fitted("ghost", {"operator": operator / 3, "bias": bias}),
        (4, 5): Fitted("ghost", {"down": down, "up": up}),
    }


def validation_losses(rows: Sequence[TrainingRow]) -> list[float]:
    """The validation losses of a training: before it, and after each epoch."""
    return [row["validation_loss"] for row in rows if "validation_loss" in row]


def chosen_row(rows: Sequence[TrainingRow]) -> TrainingRow:
    """The row after which the weights were kept."""
    (row,) = [row for row in rows if row["chosen"]]
    return row


def copy_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def has_parameters(model: torch.nn.Module, expected: dict[str, torch.Tensor]) -> bool:
    """Whether the parameters of a model have these values, bit for bit."""
    return all(
        torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters()
    )

"""Options of a sweep, a step or a search beside the selector's own: a repair in place, donors, more calibrations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, PlainSerializer

from lamina.config.repairs import Repair

# An entry of the configuration, written by those of its options that have another value than their default.
RepairOptions = Annotated[
    InstanceOf[Repair],
    PlainSerializer(lambda entry: entry.options()),
    BeforeValidator(lambda value: Repair.from_options(value) if isinstance(value, Mapping) else value),
]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Loop(_Options):
    """The repair in place, and the calibrations that it is fitted on.

    `weights` has the weight of a token of each calibration, the variant's own first. `seed` draws the folds; the layers
    `protect` are not scored.
    """

    repair: RepairOptions
    weights: list[tuple[str, float]]
    protect: list[int]
    seed: int

    @property
    def module(self) -> str:
        """The module of its method."""
        return f"lamina.repair.methods.{self.repair.method}"


class Donors(_Options):
    """The models whose layers may replace the model's own, by name; `merged` are entries of donors made of several."""

    names: list[str]
    protect: list[int]
    merged: dict[str, Any] = {}

    def records(self, siblings: Mapping[str, str]) -> dict[str, Any]:
        """The manifest of each sibling and the entry of each merged donor, by name."""
        return {**siblings, **self.merged}


class Beside(_Options):
    """Another calibration that a step is scored on: how much its scores count, and how its choices are compared."""

    weight: float
    score: Literal["acc", "acc_norm"]


@dataclass(frozen=True)
class Scored:
    """A calibration that a step is scored on: the files of its samples and of its sweep, the weight of its scores, and
    how its choices are compared, `acc` or `acc_norm`.
    """

    calibration: str
    sweep: str
    score: str
    weight: float = 1.0

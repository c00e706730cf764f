"""What a sweep, a step or a search needs in addition to the options of its selector.

These are a repair in the loop and further calibrations.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from lamina.options.entry import Options
from lamina.options.repairs import Repair

if TYPE_CHECKING:  # a dry run imports this module
    import pyarrow as pa


class _JobOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Loop(_JobOptions):
    """A repair that is in place while candidates are scored."""

    repair: Options[Repair]
    weights: list[tuple[str, float]]
    """Token weight of each calibration that the repair is fitted on, the variant's own first."""
    protect: list[int]
    """Layers that are not scored."""
    seed: int
    """Seed of the random folds."""

    @property
    def module(self) -> str:
        """The module of the repair's method."""
        return f"lamina.repairs.methods.{self.repair.method}"


class FurtherCalibration(_JobOptions):
    """Another calibration on which a step is scored."""

    weight: float
    """Weight of its scores."""
    score: Literal["acc", "acc_norm"]
    """How answers to multiple-choice questions are scored: `acc` or `acc_norm`."""


@dataclass(frozen=True)
class CalibrationSweep:
    """The sweep over a calibration on which a step is scored."""

    sweep: "pa.Table"
    """Its rows of table `sweeps`."""
    chance_accuracy: float
    """Accuracy of guessing on the calibration's samples."""
    score: str
    """How answers to multiple-choice questions are scored: `acc` or `acc_norm`."""
    weight: float = 1.0
    """Weight of its scores."""

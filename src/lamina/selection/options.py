"""What a sweep, a step or a search is given besides the options of its selector.

A repair in the loop, models whose layers may replace the model's own, and further calibrations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from lamina.options.entry import Options
from lamina.options.repairs import Repair
from lamina.store import checksum

if TYPE_CHECKING:  # a dry run imports this module
    import pyarrow as pa

# The keys of a donor's manifest that a plan records.
RECORDED_KEYS = ("source", "revision", "path", "weights_sha256", "trust_remote_code")


class _JobOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Loop(_JobOptions):
    """A repair that is in place while candidates are scored."""

    repair: Options[Repair]
    weights: list[tuple[str, float]]
    """Weight of a token of each calibration that the repair is fitted on, the variant's own first."""
    protect: list[int]
    """Layers that are not scored."""
    seed: int
    """Draws the folds."""

    @property
    def module(self) -> str:
        """The module of the repair's method."""
        return f"lamina.repairs.methods.{self.repair.method}"


class Replacements(_JobOptions):
    """The models whose layers may replace the model's own."""

    names: list[str]
    protect: list[int]
    """Layers that are not replaced."""
    merged: dict[str, Any] = {}
    """The configuration's entries of those models that are merged from several, by name."""

    def read_records(self, manifests: Mapping[str, str]) -> "DonorModels":
        """Read the records of the models from the files of their manifests."""
        records: dict[str, Mapping[str, Any]] = {}
        for name, file in manifests.items():
            manifest = checksum.read_json(file)
            records[name] = {key: manifest[key] for key in RECORDED_KEYS}
        return DonorModels(self.names, self.protect, {**records, **self.merged})


@dataclass(frozen=True)
class DonorModels:
    """The models whose layers may replace the model's own, with a record of each."""

    names: Sequence[str]
    protect: Sequence[int]
    """Layers that are not replaced."""
    records: Mapping[str, Mapping[str, Any]]
    """By name: where a model is and how it is merged, as plans record it."""

    def layers(
        self, model: Any, manifest: Mapping[str, Any], units: Iterable[str]
    ) -> dict[Any, Any]:
        """The modules of those of `units` that replace layers of the model with this manifest.

        Raises LaminaError if a layer cannot replace the model's own.
        """
        replacements = import_module("lamina.models.replacements")
        replacements.check_siblings(model, manifest, self.records)
        layers: dict[Any, Any] = replacements.replacement_layers(model, units, self.records)
        return layers


class FurtherCalibration(_JobOptions):
    """Another calibration that a step is scored on."""

    weight: float
    """Weight of its scores."""
    score: Literal["acc", "acc_norm"]
    """How answers to multiple-choice questions are scored: `acc` or `acc_norm`."""


@dataclass(frozen=True)
class CalibrationSweep:
    """The sweep over a calibration that a step is scored on."""

    sweep: "pa.Table"
    """Its rows of table `sweeps`."""
    chance_accuracy: float
    """Of the calibration's samples."""
    score: str
    """How answers to multiple-choice questions are scored: `acc` or `acc_norm`."""
    weight: float = 1.0
    """Weight of its scores."""

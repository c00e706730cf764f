"""Options of a sweep, a step or a search beside the selector's own: repairs, replacements, more calibrations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from lamina.config.entry import Options
from lamina.config.repairs import Repair
from lamina.modules import load
from lamina.store import checksum as seal


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Loop(_Options):
    """The repair in place, and the calibrations that it is fitted on."""

    repair: Options[Repair]
    weights: list[tuple[str, float]]  # of a token of each calibration, the variant's own first
    protect: list[int]  # layers that are not scored
    seed: int  # draws the folds

    @property
    def module(self) -> str:
        """The module of its method."""
        return f"lamina.repair.methods.{self.repair.method}"


class Replacements(_Options):
    """The models whose layers may replace the model's own, by name; `merged` are entries of those made of several."""

    names: list[str]
    protect: list[int]
    merged: dict[str, Any] = {}

    def given(self, manifests: Mapping[str, str]) -> "Given":
        """With the records of the models, from the files of their manifests."""
        read = {name: seal.read_json(file) for name, file in manifests.items()}
        records = {
            name: {key: manifest[key] for key in _RECORDED} for name, manifest in read.items()
        }
        return Given(self.names, self.protect, {**records, **self.merged})


# Of the manifest of a model whose layers replace others.
_RECORDED = ("source", "revision", "path", "weights_sha256", "trust_remote_code")


@dataclass(frozen=True)
class Given:
    """The models whose layers may replace the model's own, with a record of each by name."""

    names: Sequence[str]
    protect: Sequence[int]
    records: Mapping[str, Mapping[str, Any]]

    def layers(
        self, model: Any, manifest: Mapping[str, Any], units: Iterable[str]
    ) -> dict[str, Any]:
        """The modules of those of `units` that replace layers of the model with this manifest.

        Raises LaminaError if a layer cannot take the place of the model's own.
        """
        library = load("lamina.models.replacements")
        library.check_siblings(model, manifest, self.records)
        layers: dict[str, Any] = library.layers(model, units, self.records)
        return layers


class Beside(_Options):
    """Another calibration that a step is scored on: how much its scores count, and how its choices are compared."""

    weight: float
    score: Literal["acc", "acc_norm"]


@dataclass(frozen=True)
class Scored:
    """A calibration that a step is scored on: the files of its samples and of its sweep, and how its scores count."""

    calibration: str
    sweep: str
    score: str  # how its choices are compared, `acc` or `acc_norm`
    weight: float = 1.0

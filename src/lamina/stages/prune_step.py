"""Rule prune_step: choose the units that one selector removes at one size."""

from typing import Annotated, Any, Literal, Self

from lamina.config.configuration import Configuration
from lamina.config.metrics import METRICS
from lamina.config.selectors import Selector
from lamina.selection.options import Beside, Donors
from lamina.stages.changes import donors
from lamina.stages.job import READ, Job, Told, entries
from lamina.stages.sweep_units import keys
from lamina.study import paths
from lamina.study import requests as studies


class PruneStep(Job):
    """One plan. `previous` is the plan with one unit less, and `sweep` is a sweep of the model that it leaves. Runs of
    layers are chosen from `activations` instead.
    """

    OUTPUTS = {"output": paths.plan(paths.KEY, "{removed}")}
    PACKAGES = True

    manifest: Annotated[str, READ]
    calibration: Annotated[str, READ]
    selector: Told[Selector]
    previous: Annotated[str | None, READ] = None
    sweep: Annotated[str | None, READ] = None
    activations: Annotated[str | None, READ] = None
    score: Literal["acc", "acc_norm"]
    donors: Donors | None = None
    also: dict[str, Beside] = {}
    keys: dict[str, Any]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        selector = config.selectors[w.selector]
        evidence: dict[str, Any] = {}
        if selector.CAPTURES:
            evidence["activations"] = paths.activations(w.model, w.calibration)
        elif studies.step_pass(config, w.selector):
            evidence["sweep"] = _sweep(config, w, w.calibration)
            if gone := _gone(config, w):
                evidence["previous"] = paths.plan(paths.KEY.format(**w), gone)
            evidence["also"] = {
                name: Beside(
                    calibration=paths.calibration(w.model, name),
                    sweep=_sweep(config, w, name),
                    weight=weight,
                    score=config.calibrations[name].score,
                )
                for name, weight in sorted(studies.beside(config, w.calibration, w.selector).items())
            }
        return cls(
            manifest=paths.manifest(w.model),
            calibration=paths.calibration(w.model, w.calibration),
            selector=selector,
            score=config.calibrations[w.calibration].score,
            donors=donors(config, w),
            keys=keys(w),
            follows=entries(metric=METRICS[selector.metric] if selector.metric else None),
            **evidence,
            **cls.written(w),
        )

    @property
    def inputs(self) -> dict[str, Any]:
        also = [file for beside in self.also.values() for file in (beside.calibration, beside.sweep)]
        manifests = self.donors.manifests if self.donors else []
        return super().inputs | {name: files for name, files in {"also": also, "donors": manifests}.items() if files}

    @property
    def scored(self) -> dict[str, Beside]:
        """The sweeps that the step reads, by calibration, the variant's own first; none for a step without a sweep."""
        if not self.sweep:
            return {}
        own = Beside(calibration=self.calibration, sweep=self.sweep, weight=1.0, score=self.score)
        return {self.keys["calibration"]: own} | self.also

    @property
    def modules(self) -> tuple[str, ...]:
        metric = [METRICS[self.selector.metric or ""].module] if self.sweep else []
        combined = ["lamina.selection.combined"] if self.also else []
        strategy = "replacements" if self.donors else self.selector.strategy
        return (f"lamina.selection.strategies.{strategy}", *metric, *combined)


def _gone(config: Configuration, w: Any) -> int:
    """The number of units that are gone before a step."""
    return int(w.removed) - 1 if config.selectors[w.selector].GOES_ON else 0


def _sweep(config: Configuration, w: Any, calibration: str) -> str:
    """The sweep of a calibration that a step reads."""
    before, name = _gone(config, w), w.selector
    if before == 0 and studies.starts_shared(config, w.selector):
        name = f"base/{studies.step_pass(config, w.selector)}/{config.selectors[w.selector].units}"
    elif calibration != w.calibration:
        name = f"for/{w.calibration}/{w.selector}"
    return paths.sweep(f"{w.model}/{calibration}/{name}", before)

"""Ghost with `refit: true`: each run of a plan is fitted on the stream of the model pruned and patched so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from lamina.engine import moments, taps
from lamina.engine.moments import Moments, Statistics
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary, Patch, Place
from lamina.models.materialise import materialise
from lamina.models.surgery import kept_layers, units_of
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from lamina.repair.protocol import Fit


@dataclass
class Chained(Statistics[Moments]):
    """Sums behind patches fitted without the held-out samples; `behind` holds sums of all samples and final patches."""

    behind: Moments

    def whole(self) -> Moments:
        return self.behind


def fit(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Ghost,
    seed: int,
) -> tuple[dict[Boundary, Fit], dict[Boundary, taps.Run]]:
    """Fit the runs of one plan, one after the other.

    X is the stream of the model that is pruned and patched before the run. Y is the stream of the unpruned model. Two
    chains of patches are fitted. No patch of the first chain has seen the held-out samples; this chain chooses options
    and measures errors. All patches of the second chain are fitted on all samples; the variant uses this chain.

    Returns the fits, and for each boundary the pass that gave X to the first chain's patch.
    """
    fits: dict[Boundary, Fit] = {}
    behind: dict[Boundary, taps.Run] = {}
    for boundary in sorted(boundaries):
        chains = [
            _behind(
                model,
                {b: ghost.as_patch(part) for b, part in zip(fits, tensors, strict=True)},
                boundary[0],
            )
            for tensors in (
                [fit_of_run.validated for fit_of_run in fits.values()],
                [fit_of_run.tensors for fit_of_run in fits.values()],
            )
        ]
        honest, final = (
            statistics
            for run in (chains if fits else chains[:1] * 2)
            for _, statistics in moments.collect(model, sources, [boundary], seed, run=run)
        )
        fits[boundary] = ghost.fit(Chained(**vars(honest), behind=final.whole()), options)
        behind[boundary] = chains[0]
    return fits, behind


def _behind(model: PreTrainedModel, patches: Mapping[Boundary, Patch], start: float) -> taps.Run:
    """A pass whose stream at `start` is that of the model with `patches` in place of the runs before."""
    if not patches:
        return taps.run
    units = [unit for boundary in patches for unit in units_of(*boundary)]
    position = Place.of((start, start), kept_layers(model, units)).position + start % 1
    return taps.entering(materialise(model, {"units": units}, patches), position, start)

"""Ghost with `refit: true`: each run is fitted on the stream of the model repaired so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lamina.engine import moments, taps
from lamina.engine.moments import Moments, Statistics
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary, Patch, Place
from lamina.models.repaired import cut_and_repair
from lamina.models.surgery import steps_of, units_of
from lamina.models.units import is_removal
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost
from lamina.repairs.protocol import Fit


@dataclass
class ChainStatistics(Statistics[Moments]):
    """Moments of both chains: `fit` and `heldout` are those of the validated chain."""

    final_chain: Moments
    """Moments of all samples in the stream of the final chain."""

    def whole(self) -> Moments:
        return self.final_chain


def fit(
    model: PreTrainedModel,
    plan: Mapping[str, Any],
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Ghost,
    seed: int,
) -> tuple[dict[Boundary, Fit], dict[Boundary, taps.Run]]:
    """Fit the runs of one plan, one after the other.

    X is the stream of the model that is edited and patched before the run, and Y the stream of the
    unpruned model. Two chains of patches are fitted. No patch of the *validated* chain has seen the
    held-out samples; this chain chooses the options and measures the errors. All patches of the
    *final* chain are fitted on all samples; the variant uses this chain.

    Returns the fits, and for each boundary the pass that gave X to the validated chain.
    """
    fits: dict[Boundary, Fit] = {}
    validated_runs: dict[Boundary, taps.Run] = {}
    for boundary in sorted(boundaries):
        validated_patches = {
            earlier: ghost.as_patch(earlier_fit.validated) for earlier, earlier_fit in fits.items()
        }
        final_patches = {
            earlier: ghost.as_patch(earlier_fit.tensors) for earlier, earlier_fit in fits.items()
        }
        start, _ = boundary
        validated_run = _run_after(model, plan, validated_patches, start)
        final_run = _run_after(model, plan, final_patches, start)

        statistics = _collect_chains(model, sources, boundary, seed, validated_run, final_run)
        fits[boundary] = ghost.fit(statistics, options)
        # Free the C² sums before those of the next run are collected.
        del statistics
        validated_runs[boundary] = validated_run
    return fits, validated_runs


def _collect_chains(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundary: Boundary,
    seed: int,
    validated_run: taps.Run,
    final_run: taps.Run,
) -> ChainStatistics:
    """The moments of one boundary in the streams of both chains."""
    ((_, validated),) = moments.collect_moments(model, sources, [boundary], seed, run=validated_run)
    ((_, final),) = moments.collect_moments(model, sources, [boundary], seed, run=final_run)
    return ChainStatistics(validated.fit, validated.heldout, validated.n_samples, final.whole())


def _run_after(
    model: PreTrainedModel, plan: Mapping[str, Any], patches: Mapping[Boundary, Patch], start: float
) -> taps.Run:
    """A pass whose stream at `start` is that of the plan's model with `patches` for earlier runs.

    Only these runs are removed from it.
    """
    edits = [edit for edit in plan["units"] if not is_removal(edit)]
    for boundary in patches:
        edits += units_of(*boundary)
    if not edits:
        return taps.run_sequences
    variant = cut_and_repair(model, {**plan, "units": edits}, patches)
    # A start of 3.5 lies between attention and MLP, in the variant as in the base model.
    layer_index = Place.of((start, start), steps_of(model, edits)).position
    return taps.enter_at_boundary(variant, layer_index + start % 1, start)

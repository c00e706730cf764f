"""Measure one sweep, or a block of it: the removal of each of its units, in one pass."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples
from lamina.engine import candidates, forking, memory, sweep
from lamina.engine.candidates import CURRENT, Candidate, Observation
from lamina.engine.session import Pass
from lamina.engine.sources import Source
from lamina.models.structure import layers_of
from lamina.models.units import all_units, parse_unit
from lamina.options.metrics import MODULES
from lamina.selection.options import Loop
from lamina.selection.plans import protected_layers
from lamina.store.unfinished import Progress


def share_units(
    n_layers: int,
    unit_kind: str,
    removed: Sequence[str],
    block_index: int = 0,
    n_blocks: int = 1,
) -> list[str]:
    """The units of this kind that a model of `n_layers` layers still has, or one block's share."""
    units = all_units(n_layers, unit_kind, removed)
    return sweep.share_by_cost(units, n_layers, block_index, n_blocks)


def removal_rows(
    model: PreTrainedModel,
    calibrations: Mapping[str, CalibrationSamples],
    units: Sequence[str],
    removed: Sequence[str] = (),
    pass_: str = "removal",
    token_budget: int | str = "auto",
    *,
    with_current: bool = True,
    loop: Loop | None = None,
    progress: Progress | None = None,
    questions: Any = None,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` without its keys.

    model: The complete base model.
    calibrations: By name: first the one that is scored, then those on which only the repair of
        `loop` is fitted.
    units, removed: The units to measure, and the units that were removed before the sweep.
    token_budget: Token budget of one pass: lines × streams × length.
    with_current: Whether the model before the removals has rows too.
    loop: The repair in place. The layers that it protects are not measured.
    progress: The file for the results so far, if the sweep covers all units and samples.
    questions: Those of the samples, for a pass in which answers are written
        (`lamina.evaluation.written_removals.draw_questions`).
    """
    calibration = next(iter(calibrations.values()))
    samples = calibration.samples
    if questions is not None:
        module = import_module(MODULES[pass_])
        return list(
            module.sweep_rows(model, samples, units, removed, questions, with_current, progress)
        )
    token_budget = memory.choose_token_budget(token_budget, model, samples, len(units) + 2)
    if pass_ in MODULES:
        module = import_module(MODULES[pass_])
        return list(module.sweep_rows(model, samples, units, removed, pass_, token_budget))
    if loop:
        return _rows_with_repair(
            model, calibrations, units, removed, token_budget, with_current, loop
        )
    scores = sweep.sweep_units(
        model, samples, units, removed, cast(Pass, pass_), token_budget, progress=progress
    )
    return scores.rows([CURRENT, *units] if with_current else units)


def _rows_with_repair(
    model: PreTrainedModel,
    calibrations: Mapping[str, CalibrationSamples],
    units: Sequence[str],
    removed: Sequence[str],
    token_budget: int,
    with_current: bool,
    loop: Loop,
) -> list[dict[str, Any]]:
    """The rows of `removal_rows` for candidates with a repair."""
    samples = next(iter(calibrations.values())).samples
    protected = protected_layers(loop.protect, sweep.layer_count(model))
    measured_units = [unit for unit in units if parse_unit(unit)[0] not in protected]
    wanted, observed = candidates.plan_sweep(
        Candidate(frozenset(removed)),
        measured_units,
        forking.find_parallel_layers(layers_of(model)),
    )
    repairs = _fit_repairs(model, calibrations, loop, wanted.values(), observed)
    with sweep.open_session(model, samples, token_budget) as session:
        repairs.measure(session, range(len(samples)), wanted, observed)
        return list(session.scores.rows(wanted if with_current else measured_units))


def _fit_repairs(
    model: PreTrainedModel,
    calibrations: Mapping[str, CalibrationSamples],
    loop: Loop,
    measured_candidates: Iterable[Candidate],
    observed: Mapping[str, Observation],
) -> Any:
    """The patches of all runs that measured or observed candidates lack, fitted by folds."""
    scored_name = next(iter(calibrations))
    weights = dict(loop.weights)
    # With another calibration's plans, the repair need not be fitted on the one that is scored.
    weights.setdefault(scored_name, 0.0)
    sources = [Source(calibrations[name].sequences(), weight) for name, weight in weights.items()]
    scored_source = list(weights).index(scored_name)
    fitted_for = list(measured_candidates)
    for observation in observed.values():
        observed_candidates = (observation.model, observation.before, observation.after)
        fitted_for += [candidate for candidate in observed_candidates if candidate]
    looped = import_module("lamina.selection.looped")
    return looped.fit_loop_patches(
        model, sources, fitted_for, loop.repair, loop.seed, scored_source
    )

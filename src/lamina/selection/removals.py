"""One block of a sweep: the effect of the removal of each of its units, measured by the pass that the job names."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers import PreTrainedModel

from lamina.config.metrics import METRICS, MODULES
from lamina.data.calibrations import Calibration
from lamina.engine import forking
from lamina.engine import memory as room
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT, Candidate, swept
from lamina.engine.session import Pass
from lamina.engine.sources import Source
from lamina.models.structure import layers_of
from lamina.models.units import all_units, parse
from lamina.modules import load
from lamina.selection.evaluator import Evaluator
from lamina.selection.losses import loss_of
from lamina.selection.plans import protected_layers
from lamina.stages.sweep_units import SweepUnits
from lamina.store.unfinished import Progress


def share(job: SweepUnits, n_layers: int, removed: Sequence[str]) -> list[str]:
    """The units of the job's block, of those that a model of `n_layers` layers still has."""
    units = all_units(n_layers, job.units, removed)
    if job.donors:
        units = load("lamina.selection.strategies.replacements").units(units, removed, job.donors.names)
    return engine.share_by_cost(units, n_layers, job.block, job.blocks)


def rows(
    job: SweepUnits,
    model: PreTrainedModel,
    manifest: Mapping[str, Any],
    read: Mapping[str, Calibration],
    units: Sequence[str],
    removed: Sequence[str],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` without its keys.

    Parameters
    ----------
    model, manifest
        The base model and its manifest.
    read
        The calibrations that the job names: the one that is scored, and those that fit a repair in the loop.
    units, removed
        The units of the block, and the units that were removed before the sweep.
    progress
        The file in which a sweep of all units on all samples keeps its results so far.
    """
    calibration = read[job.keys["calibration"]]
    tokens = room.tokens(job.tokens, model, calibration.samples, len(units) + 2)
    if job.pass_ in MODULES:
        return list(load(MODULES[job.pass_]).rows(model, calibration.samples, units, removed, job.pass_, tokens))
    if job.budget or job.loop or job.donors:
        return _evaluated(job, model, manifest, read, units, removed, tokens)
    names = [CURRENT, *units] if job.block == 0 else units
    pass_ = cast(Pass, job.pass_)
    return engine.sweep(model, calibration.samples, units, removed, pass_, tokens, progress=progress).rows(names)


def _evaluated(
    job: SweepUnits,
    model: PreTrainedModel,
    manifest: Mapping[str, Any],
    read: Mapping[str, Calibration],
    units: Sequence[str],
    removed: Sequence[str],
    tokens: int,
) -> list[dict[str, Any]]:
    """Rows of a sweep with a budget, a repair in the loop or donors. Protected layers are not measured.

    With a budget, `chosen` marks the unit that the budget chose.
    """
    calibration, loop, options = read[job.keys["calibration"]], job.loop, job.budget
    protect = options["protect"] if options else (loop or job.donors).protect  # type: ignore[union-attr]
    kept = protected_layers(protect, engine.layer_count(model))
    current = Candidate(frozenset(removed))
    there = [unit for unit in units if parse(unit)[0] not in kept]
    wanted, observed = swept(current, there, forking.parallel(layers_of(model)))
    layers = None
    if job.donors:
        donors, records = (
            load("lamina.models.donors"),
            load("lamina.selection.strategies.replacements").read(job.donors.records),
        )
        donors.check(model, manifest, records)
        layers = donors.donated(model, [*removed, *there], records)
    outputs = options is None or METRICS[options["metric"]].column.startswith("output_")
    repairs = looped = None
    if loop:
        looped = load("lamina.selection.looped")
        # What is scored for another calibration's plans need not be what their repair is fitted on.
        weights = dict(loop.weights)
        weights.setdefault(job.keys["calibration"], 0.0)
        sources = [Source(read[name].sequences(), weight) for name, weight in weights.items()]
        at = list(weights).index(job.keys["calibration"])
        repairs = looped.fitted(model, sources, list(wanted.values()), loop.repair, loop.seed, at)
    with engine.opened(model, calibration.samples, tokens, outputs, layers) as session:
        measuring = looped.Looped(session, repairs) if looped else session
        if options is None:
            measuring.measure(range(len(calibration.samples)), wanted, observed)
            return list(session.scores.rows(wanted if job.block == 0 else there))
        loss = loss_of(options["metric"], options["score"])
        named = {candidate: unit for unit, candidate in wanted.items()}
        looks = {wanted[unit]: look for unit, look in observed.items()}
        evaluator = Evaluator(measuring, loss, [current], named, looks)
        budget = load(f"lamina.selection.{options['budget']}")
        chosen = budget.run(evaluator, [wanted[unit] for unit in there], options, calibration.facts["chance_accuracy"])
    rows = evaluator.rows(wanted.values())
    return [row | {"chosen": chosen and row["unit"] == named[chosen]} for row in rows]

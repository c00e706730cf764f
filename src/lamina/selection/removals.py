"""One sweep or a block of it: the effect of the removal of each of its units, measured by one pass."""

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
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.options import Given, Loop, Replacements
from lamina.selection.plans import protected_layers
from lamina.store.unfinished import Progress


def share(
    n_layers: int,
    kind: str,
    removed: Sequence[str],
    replacements: Replacements | None = None,
    block: int = 0,
    blocks: int = 1,
) -> list[str]:
    """The units of this kind that a model of `n_layers` layers still has, or the share of them of one of `blocks`."""
    units = all_units(n_layers, kind, removed)
    if replacements:
        units = load("lamina.selection.strategies.replacements").units(units, removed, replacements.names)
    return engine.share_by_cost(units, n_layers, block, blocks)


def rows(
    model: PreTrainedModel,
    calibrations: Mapping[str, Calibration],
    units: Sequence[str],
    removed: Sequence[str] = (),
    pass_: str = "removal",
    tokens: int | str = "auto",
    *,
    current: bool = True,
    budget: Mapping[str, Any] | None = None,
    loop: Loop | None = None,
    replacements: Given | None = None,
    manifest: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` without its keys.

    model: The base model, complete.
    calibrations: By name: first the one that is scored, then those that only fit the repair of `loop`.
    units, removed: The units to measure, and the units that were removed before the sweep.
    tokens: Budget of one pass: lines x streams x length.
    current: Whether the model before the removals has rows too.
    budget: Lets units leave early: `budget` (its module), `metric`, `score`, `protect`, `seed`, `step` (the place of
        this removal in its plan, from 1) and the options of its module.
    loop, replacements: The repair in place, and whose layers are among `units`. The layers that they or a budget
        protect are not measured.
    manifest: That of the model, which replacements are compared with.
    progress: The file in which a sweep of all units on all samples keeps its results so far.
    """
    calibration = next(iter(calibrations.values()))
    budgeted = room.tokens(tokens, model, calibration.samples, len(units) + 2)
    if pass_ in MODULES:
        return list(load(MODULES[pass_]).rows(model, calibration.samples, units, removed, pass_, budgeted))
    if budget or loop or replacements:
        return _evaluated(model, calibrations, units, removed, budgeted, current, budget, loop, replacements, manifest)
    names = [CURRENT, *units] if current else units
    scores = engine.sweep(model, calibration.samples, units, removed, cast(Pass, pass_), budgeted, progress=progress)
    return scores.rows(names)


def _evaluated(
    model: PreTrainedModel,
    calibrations: Mapping[str, Calibration],
    units: Sequence[str],
    removed: Sequence[str],
    tokens: int,
    before: bool,
    options: Mapping[str, Any] | None,
    loop: Loop | None,
    replacements: Given | None,
    manifest: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Rows of a sweep with a budget, a repair in the loop or replacements.

    With a budget, `chosen` marks the unit that the budget chose.
    """
    scored, calibration = next(iter(calibrations.items()))
    protect = options["protect"] if options else (loop or replacements).protect  # type: ignore[union-attr]
    kept = protected_layers(protect, engine.layer_count(model))
    current = Candidate(frozenset(removed))
    there = [unit for unit in units if parse(unit)[0] not in kept]
    wanted, observed = swept(current, there, forking.parallel(layers_of(model)))
    layers = replacements.layers(model, manifest or {}, [*removed, *there]) if replacements else None
    outputs = options is None or METRICS[options["metric"]].outputs
    repairs = looped = None
    if loop:
        looped = load("lamina.selection.looped")
        # What is scored for another calibration's plans need not be what their repair is fitted on.
        weights = dict(loop.weights)
        weights.setdefault(scored, 0.0)
        sources = [Source(calibrations[name].sequences(), weight) for name, weight in weights.items()]
        at = list(weights).index(scored)
        repairs = looped.fitted(model, sources, list(wanted.values()), loop.repair, loop.seed, at)
    with engine.opened(model, calibration.samples, tokens, outputs, layers) as session:
        measuring = looped.Looped(session, repairs) if looped else session
        if options is None:
            measuring.measure(range(len(calibration.samples)), wanted, observed)
            return list(session.scores.rows(wanted if before else there))
        loss = loss_of(options["metric"], options["score"])
        named = {candidate: unit for unit, candidate in wanted.items()}
        looks = {wanted[unit]: look for unit, look in observed.items()}
        evaluator = Evaluator(measuring, loss, [current], named, looks)
        budget = load(f"lamina.selection.{options['budget']}")
        chosen = budget.run(evaluator, [wanted[unit] for unit in there], options, calibration.facts["chance_accuracy"])
    rows = evaluator.rows(wanted.values())
    return [row | {"chosen": chosen and row["unit"] == named[chosen]} for row in rows]

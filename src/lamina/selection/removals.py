"""One sweep or a block of it: the effect of the removal of each of its units, measured by one pass."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers import PreTrainedModel

from lamina.config.metrics import METRICS, MODULES
from lamina.data.calibrations import Calibration
from lamina.engine import candidates, forking
from lamina.engine import memory as room
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT, Candidate
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
        units = load("lamina.selection.strategies.replacements").units(
            units, removed, replacements.names
        )
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
    budget: Lets units leave early, and marks the `chosen` one: `budget` (its module), `metric`, `score`, `protect`,
        `seed`, `step` (the place of this removal in its plan, from 1) and the options of its module.
    loop, replacements: The repair in place, and whose layers are among `units`. The layers that they or a budget
        protect are not measured.
    manifest: That of the model, which replacements are compared with.
    progress: The file in which a sweep of all units on all samples keeps its results so far.
    """
    scored, calibration = next(iter(calibrations.items()))
    budgeted = room.tokens(tokens, model, calibration.samples, len(units) + 2)
    if pass_ in MODULES:
        return list(
            load(MODULES[pass_]).rows(model, calibration.samples, units, removed, pass_, budgeted)
        )
    if not (budget or loop or replacements):
        swept = engine.sweep(
            model,
            calibration.samples,
            units,
            removed,
            cast(Pass, pass_),
            budgeted,
            progress=progress,
        )
        return swept.rows([CURRENT, *units] if current else units)
    protect = budget["protect"] if budget else (loop or replacements).protect  # type: ignore[union-attr]
    kept = protected_layers(protect, engine.layer_count(model))
    before = Candidate(frozenset(removed))
    there = [unit for unit in units if parse(unit)[0] not in kept]
    wanted, observed = candidates.swept(before, there, forking.parallel(layers_of(model)))
    layers = (
        replacements.layers(model, manifest or {}, [*removed, *there]) if replacements else None
    )
    outputs = budget is None or METRICS[budget["metric"]].outputs
    repairs = looped = None
    if loop:
        looped = load("lamina.selection.looped")
        # What is scored for another calibration's plans need not be what their repair is fitted on.
        weights = dict(loop.weights)
        weights.setdefault(scored, 0.0)
        sources = [
            Source(calibrations[name].sequences(), weight) for name, weight in weights.items()
        ]
        at = list(weights).index(scored)
        seen = [
            each
            for look in observed.values()
            for each in (look.model, look.before, look.after)
            if each
        ]
        repairs = looped.fitted(
            model, sources, [*wanted.values(), *seen], loop.repair, loop.seed, at
        )
    with engine.opened(model, calibration.samples, budgeted, outputs, layers) as session:
        measuring = looped.Looped(session, repairs) if looped else session
        if budget is None:
            measuring.measure(range(len(calibration.samples)), wanted, observed)
            return list(session.scores.rows(wanted if current else there))
        loss = loss_of(budget["metric"], budget["score"])
        named = {candidate: unit for unit, candidate in wanted.items()}
        looks = {wanted[unit]: look for unit, look in observed.items()}
        evaluator = Evaluator(measuring, loss, [before], named, looks)
        run = load(f"lamina.selection.{budget['budget']}").run
        chosen = run(
            evaluator,
            [wanted[unit] for unit in there],
            budget,
            calibration.facts["chance_accuracy"],
        )
    rows = evaluator.rows(wanted.values())
    return [row | {"chosen": chosen and row["unit"] == named[chosen]} for row in rows]

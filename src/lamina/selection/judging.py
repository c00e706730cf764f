"""Whole sets of units, proposed on some documents and judged on others: the search of strategy `portfolio`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lamina.config.metrics import METRICS
from lamina.config.selectors import Selector
from lamina.data.calibrations import Calibration, Sample
from lamina.data.splitting import documents
from lamina.engine import memory as room
from lamina.engine import sweep as engine
from lamina.engine.candidates import Candidate
from lamina.engine.capture import capture
from lamina.engine.scores import Scores
from lamina.engine.session import Session
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.units import all_units, parse
from lamina.modules import load
from lamina.relevance import protocol
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.repair.patch_store import PatchStore
from lamina.selection import looped, removals
from lamina.selection.evaluator import Evaluator, Loss, loss_of
from lamina.selection.looped import boundaries
from lamina.selection.options import Loop
from lamina.selection.plans import Plan, Request, Step, protected_layers
from lamina.selection.sets import SearchRequest
from lamina.selection.strategies import portfolio
from lamina.selection.strategies.portfolio import BOUNDARIES, NONE, OF_LAYERS, Judges, halved
from lamina.selection.trials import BASE, HELD_BACK, WINNER, Search, Trials, split, without
from lamina.store import parquet as store


def searched(request: SearchRequest) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans of all sizes, and the rows of table `searches` without its keys."""
    options, model, calibrations, units = (
        request.selector,
        request.model,
        request.calibrations,
        request.units,
    )
    choosing, judging = parted(calibrations, options)
    sets, scores = proposals(request, choosing)
    if not any(sets.values()):
        why = "no member of the portfolio has a score on this calibration. Give it more samples, or list other members."
        return [request.plan(size, refused=why) for size in request.sizes], []
    samples = [sample for part in judging.values() for sample in part]
    generator, starts = (
        np.random.default_rng(options.seed),
        np.cumsum([0, *map(len, judging.values())]),
    )
    parts = [
        generator.permutation(np.arange(*pair))
        for pair in zip(starts[:-1], starts[1:], strict=True)
    ]
    judges = Judges(parts, [1.0, *(options.also[name] for name in list(judging)[1:])])
    sequences = [sample.sequence() for sample in choosing.samples]
    form = Forms(
        model,
        calibrations,
        sequences,
        [each.sequence() for each in samples],
        request.loops,
        PatchStore(request.folder),
    )
    budget = room.tokens(request.tokens, model, samples, request.depth + 2)
    with engine.opened(model, samples, budget, METRICS[options.metric].outputs) as session:

        def prepare(candidates: Sequence[Candidate]) -> None:
            session.scores = Scores(samples)  # the trials remember losses

        asked = Asked(session, options.metric, request.score, int(starts[1]))
        trials = Trials(
            asked, len(samples), request.log, request.origin, lambda: session.layer_tokens, prepare
        )

        def exchanges(around: frozenset[str]) -> list[frozenset[str]]:
            return portfolio.exchanged(around, units, scores, options.exchanges, request.prices)

        choices, rows = portfolio.decide(trials, judges, sets, exchanges, form, options.seed)
        everything, last = judges.part(0, 1), judges.part(0.5, 1)
        trials.losses([Candidate()], np.concatenate(everything))
        base = trials.values(Candidate())
    before, own = float(judges.mean(base, everything)), protocol.metric(options.metric)
    counts = {WINNER: len(samples), HELD_BACK: sum(map(len, last))}

    def end(stage: str, loss: float, n_new: int, **keys: Any) -> dict[str, Any]:
        ended = {
            "strategy": options.strategy,
            "stage": stage,
            "loss": loss,
            "n_samples": counts[stage],
            "n_new": n_new,
        }
        return ended | {"kept": True, "layer_tokens": 0.0} | keys

    of_base: dict[str, Any] = {"strategy": BASE, "removed": 0, "step": 0, "units": []}
    ends = [
        end(WINNER, before, len(samples), **of_base),
        end(HELD_BACK, float(judges.mean(base, last)), 0, **of_base),
    ]
    ends += [{"strategy": options.strategy} | row for row in rows]
    found = []
    for size, choice in choices.items():
        what = {"removed": size, "step": size} | {
            name: choice[name] for name in ("units", "member", "repair")
        }
        ends += [
            end(WINNER, choice["loss"], 0, **what),
            end(HELD_BACK, choice["corrected_loss"], 0, **what),
        ]
        bare, gone = choice["repairs"][NONE], choice["units"]
        between = [None] * (len(gone) - 1)
        ways = [None, None] if len(parts) > 1 else [own.accuracy(before), own.accuracy(bare)]
        around: dict[str, Any] = {
            "accuracy_before": [ways[0], *between],
            "accuracy_after": [*between, ways[1]],
        }
        told = {"base_loss": before} | {
            name: value for name, value in choice.items() if name != "units"
        }
        found.append(
            request.plan(size, units=gone, scores=[bare] * len(gone), choice=told, **around)
        )
    return found, [row | {"evaluation": number} for number, row in enumerate(ends)]


def parted(
    calibrations: Mapping[str, Calibration], options: Any
) -> tuple[Calibration, dict[str, list[Sample]]]:
    """The calibration that chooses, and the samples that judge by their calibration, first those of the task.

    No document is on both sides, whatever its length or the calibration that has it.

    Raises LaminaError if there are too few documents.
    """
    own, calibration = next(iter(calibrations.items()))
    samples = calibration.samples
    if options.judge and options.judge != own:
        choosing, judging = (
            list(samples),
            {options.judge: list(calibrations[options.judge].samples)},
        )
    else:
        seen, held = split(calibration.sequences(), options.held_back, options.seed)
        choosing, judging = (
            [samples[number] for number in seen],
            {own: [samples[number] for number in held]},
        )
    for name in (name for name in options.also if name not in judging):
        # Repairs may be fitted on the rest of it.
        _, held = split(calibrations[name].sequences(), options.held_back, options.seed)
        judging[name] = [calibrations[name].samples[number] for number in held]
    numbered = documents(
        [[each.sequence() for each in part] for part in (choosing, *judging.values())]
    )
    chose = set(numbered[0])
    judging = {
        name: [
            sample for sample, document in zip(part, numbers, strict=True) if document not in chose
        ]
        for (name, part), numbers in zip(judging.items(), numbered[1:], strict=True)
    }
    if lacking := [name for name, part in judging.items() if not part]:
        raise LaminaError(
            f"calibration '{lacking[0]}' has no document that chose nothing, so it cannot judge a portfolio. "
            "Name another one, or give it more documents."
        )
    return Calibration(tuple(choosing), calibration.facts), judging


def proposals(
    request: SearchRequest, calibration: Calibration
) -> tuple[dict[int, dict[str, frozenset[str]]], dict[str, float]]:
    """The sets of the members by size, and the rank of each unit's single removal by the deciding metric.

    A member whose metric is undefined on the calibration proposes nothing.
    """
    model, options, keys, depth = request.model, request.selector, request.keys, request.depth
    of_metrics = [name for name in options.members if name in METRICS]
    searching = [
        kind.title()
        for kind in Selector.kinds()
        if kind.SEARCHES and kind.title() in options.members
    ]
    strategies = [name for name in options.members if name not in [*of_metrics, *searching]]
    context = Context(calibration.facts["chance_accuracy"], request.score, seed=options.seed)
    kept, attention = protected_layers(options.protect, depth), request.prices.attention
    kinds = {"": options.units} | ({OF_LAYERS: "layer"} if options.units == "both" else {})
    ranked: dict[str, list[tuple[str, float | None]]] = {}
    for suffix, kind in kinds.items():
        free = [unit for unit in all_units(depth, kind) if parse(unit)[0] not in kept]
        swept = removals.rows(model, {"calibration": calibration}, free, tokens=request.tokens)
        columns = from_table(store.from_rows("sweeps", swept, removed=0, **keys))
        for metric in dict.fromkeys([options.metric, *of_metrics]):
            if (order := ranking(columns, metric, context)).ranks is not None:
                scores = [float(score) if np.isfinite(score) else None for score in order.draws[0]]
                entries = sorted(zip(order.ranks, columns.units, scores, strict=True))
                ranked[metric + suffix] = [(unit, score) for _, unit, score in entries]
    sets: dict[int, dict[str, frozenset[str]]] = {size: {} for size in request.sizes}
    if strategies:
        (column,) = METRICS[BOUNDARIES].columns
        captured = capture(
            model, calibration.sequences(), room.tokens(request.tokens, model, calibration.samples)
        )
        step = Step(
            angles={(row["layer"], row["span"]): row[column] for row in captured if row["span"]}
        )
    for size, name, (suffix, kind) in product(request.sizes, options.members, kinds.items()):
        one, found = Request(size, kind, depth, kept, options.seed, attention=attention), []
        if name + suffix in ranked:
            found = [unit for unit, _ in one.lowest(ranked[name + suffix])]
        elif name in strategies and kind != "both":
            told = {"strategy": name, "metric": BOUNDARIES, "protect": options.protect}
            if size <= Selector.from_options(told).largest_removal(depth):
                before = Plan(**keys, removed=0, metric=BOUNDARIES, strategy=name, kind=kind)
                found = load(f"{Selector.PACKAGE}.{name}").choose(one, step, before).units
        if found:
            sets[size][name + suffix] = halved(found) if suffix else frozenset(found)
    for name in searching:
        for size, candidate in _search(request, name, calibration).items():
            sets[size][name] = candidate.removed
    deciding = [unit for unit, _ in ranked.get(options.metric, ())] or request.units
    return sets, {unit: float(place) for place, unit in enumerate(deciding)}


def _search(request: SearchRequest, name: str, calibration: Calibration) -> Mapping[int, Candidate]:
    """The sets that a searching strategy finds with its defaults, on all samples."""
    samples, metric = calibration.samples, request.selector.metric
    own, method = (
        Selector.from_options({"strategy": name, "metric": metric}),
        load(f"{Selector.PACKAGE}.{name}"),
    )
    budget = room.tokens(request.tokens, request.model, samples, request.depth + 2)
    with engine.opened(request.model, samples, budget, METRICS[metric].outputs) as session:
        trials = Trials(
            Evaluator(session, loss_of(metric, request.score)), len(samples), prices=request.prices
        )
        lengths = np.array([len(sequence) for sequence in calibration.sequences()])
        search = Search(name, trials, np.arange(len(samples)), lengths)
        return dict(method.find(search, request.units, request.sizes, own))


class PerToken(Loss):
    """The loss of text: nats per token."""

    def of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """From columns of `sweeps`, (candidates, samples) each."""
        return values["nll"] / values["n_tokens"]


class Asked:
    """Losses of candidates: by the metric on the first `count` samples, which are the task's, per token on others."""

    def __init__(self, session: Session, metric: str, score: str, count: int) -> None:
        self._task = Evaluator(session, loss_of(metric, score))
        self._text = Evaluator(session, PerToken(protocol.metric(metric), score))
        self._count = count

    def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
        """(candidates, samples)."""
        numbers = list(numbers)
        task = [number < self._count for number in numbers]
        losses = np.empty((len(candidates), len(numbers)))
        for evaluator, side in ((self._task, True), (self._text, False)):
            places = [place for place, mine in enumerate(task) if mine == side]
            if places:
                losses[:, places] = evaluator.losses(
                    candidates, [numbers[place] for place in places]
                )
        return losses


class Forms:
    """The candidates of sets, bare and with every repair, whose patches are fitted on documents that do not judge.

    Patches, C² float32 numbers for each run of removed layers, wait in a store.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        calibrations: Mapping[str, Calibration],
        choosing: Sequence[Sequence[int]],
        judging: Sequence[Sequence[int]],
        loops: Mapping[str, Loop],
        store: PatchStore | None = None,
    ) -> None:
        self._model, self._loops, self._depth = model, loops, engine.layer_count(model)
        self._store = store or PatchStore()
        own = next(iter(calibrations))
        sequences = {
            name: without(each.sequences(), judging) for name, each in calibrations.items()
        }
        sequences[own] = list(choosing)
        self._sources = {
            name: [Source(sequences[each], weight) for each, weight in loop.weights]
            for name, loop in loops.items()
        }
        self._patches: dict[str, dict[Boundary, Patch]] = {name: {} for name in loops}

    def __call__(
        self, sets: Iterable[frozenset[str]]
    ) -> dict[frozenset[str], dict[str, Candidate]]:
        bare = {units: Candidate(units) for units in sets}
        wanted = boundaries(bare.values(), self._depth)
        for name, loop in self._loops.items():
            known = self._patches[name]
            if new := [run for run in wanted if run not in known]:
                known |= looped.patches(
                    self._model, self._sources[name], new, loop.repair, loop.seed, self._store
                )
        return {
            units: {NONE: candidate}
            | {
                name: Candidate(
                    units, {run: patches[run] for run in boundaries([candidate], self._depth)}
                )
                for name, patches in self._patches.items()
            }
            for units, candidate in bare.items()
        }

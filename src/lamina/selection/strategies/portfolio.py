"""A portfolio: several ways to choose propose sets of each size, and documents that chose none of them decide.

No single metric is safe for whole sets, and neither is a repair. So the members of the portfolio see one part of the
calibration, the other part judges their sets, few of its documents first and all in the end, each set with every repair
that is listed and with none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from lamina.config.entry import Filled, Weights, option, seed_option
from lamina.config.explain import listed, wrong
from lamina.config.metrics import METRICS, MetricName
from lamina.config.selectors import Selector
from lamina.models.units import COMPONENTS, parse

if TYPE_CHECKING:
    import numpy as np

    from lamina.engine.candidates import Candidate
    from lamina.selection.plans import Prices
    from lamina.selection.trials import Trials

# Shares of the judging documents on which sets are compared, and how many sets of a size go on from there.
STAGES = ((0.25, 8), (0.5, 4), (1.0, 1))
AROUND = 2  # sets of a size around which exchanges are tried
CUTS = 200  # of the last documents in two, which correct the winner's loss
EXCHANGE, NONE = "exchange", "none"
OF_LAYERS = " (layers)"  # behind the name of a metric that proposes whole layers beside halves
BOUNDARIES = "cosine"  # the metric by which strategies compare boundaries


class Portfolio(Selector):
    """Takes the best of what its members propose, judged as whole sets on documents that chose none of them.

    The members choose by one part of the calibration: metrics by one sweep of single removals, strategies by the
    similarities of the streams. Every set is measured on the other part (`held_back`), or on the calibration `judge`,
    together with exchanges of one unit around the best sets, and with every one of `repairs` in place. What loses most
    on a quarter and on half of these documents leaves; the least loss on all of them wins. Its loss is corrected for
    being the best of many: the last half of the documents, on which no set left, is cut in two many times, one part
    chooses among the sets and the other measures.

    With `units: both`, metrics propose halves of layers, and once more whole layers; strategies that read the streams
    propose whole layers. A layer counts as its two halves, so that all of them compete.
    """

    SEARCHES = True
    SEARCH = "lamina.selection.judging"
    CHOICE = "of the sets that several ways proposed, the one went whose loss on other documents was least"

    strategy: Literal["portfolio"] = "portfolio"
    metric: MetricName = option("Metric whose loss on the judging documents decides.", "perplexity")
    members: list[Annotated[str, Field(min_length=1)]] = option(
        "Metrics by which the lowest units are proposed, and strategies: those that read the streams of the unpruned "
        "model, and those that search, which cost much more.",
        ["block", "clusters", "cosine", "accuracy", "perplexity", "output_kl"],
        min_length=1,
    )
    exchanges: int = option(
        "Sets of each size that are tried around the best proposals, one unit exchanged.", 16, ge=0
    )
    repairs: list[Filled] = option(
        "Repairs (names under `repairs`) with which every set is measured beside the bare one.",
        [],
        shown_default="none",
    )
    judge: Filled | None = option(
        "Calibration whose documents judge; `null` takes the part `held_back` of the variant's own.",
        None,
    )
    held_back: float = option(
        "Share of the calibration that the members never see, and that judges.", 0.5, gt=0, lt=1
    )
    also: Weights = option(
        "General text that judges beside the task: calibrations, and what the loss of their tokens counts (nats per "
        "token) beside the mean loss of the task's documents.",
        {},
        allowed="weights above 0 by calibration, such as {corpus: 1}",
        shown_default="none",
    )
    seed: int = seed_option()

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        runs = [kind.title() for kind in Selector.kinds() if kind.CAPTURED]
        strategies = [
            *runs,
            *(
                kind.title()
                for kind in Selector.kinds()
                if kind.SEARCHES and kind is not type(self)
            ),
        ]
        metrics = [
            name for name, metric in METRICS.items() if metric.pass_ in ("removal", "stream")
        ]
        for name in self.members:
            if name not in [*strategies, *metrics]:
                raise wrong(
                    f"'{name}' proposes no sets. Write some of {listed([*strategies, *metrics])}.",
                    "members",
                )
            if name in runs and self.units not in ("layer", "both"):
                raise wrong(
                    f"'{name}' proposes whole layers alone. Write units: layer or both.", "members"
                )
        return self

    @property
    def modules(self) -> tuple[str, ...]:
        metrics = [
            METRICS[name].module
            for name in (self.metric, BOUNDARIES, *self.members)
            if name in METRICS
        ]
        strategies = [f"{self.PACKAGE}.{name}" for name in self.members if name not in METRICS]
        return (f"{self.PACKAGE}.{self.strategy}", *dict.fromkeys([*metrics, *strategies]))


@dataclass(frozen=True)
class Entry:
    """A set of units that `member` proposed; `forms` are its candidates by repair, the bare one under `none`."""

    member: str
    units: frozenset[str]
    forms: Mapping[str, Candidate]


@dataclass(frozen=True)
class Judges:
    """The judging documents: `sources` has the numbers of the samples of each calibration, and `weights` what the mean
    loss of each counts. Samples stand in a drawn order, which is that in which they judge.
    """

    sources: Sequence[np.ndarray]
    weights: Sequence[float]

    def part(self, start: float, end: float) -> list[np.ndarray]:
        """The samples between two shares of every source, at least one."""
        counts = [(len(source), source) for source in self.sources]
        return [
            source[min(round(start * n), n - 1) : max(1, round(end * n))] for n, source in counts
        ]

    def mean(self, losses: np.ndarray, part: Sequence[np.ndarray]) -> np.ndarray:
        """Weighted sums over sources of the mean losses, (…,), from losses of all samples (…, samples)."""
        return sum(
            weight * losses[..., some].mean(axis=-1)
            for some, weight in zip(part, self.weights, strict=True)
        )


Form = Callable[[Iterable[frozenset[str]]], Mapping[frozenset[str], Mapping[str, "Candidate"]]]
"""The candidates of sets, bare and with each repair: it fits what is not fitted yet."""


def decide(
    trials: Trials,
    judges: Judges,
    proposals: Mapping[int, Mapping[str, frozenset[str]]],
    exchanges: Callable[[frozenset[str]], Sequence[frozenset[str]]],
    form: Form,
    seed: int,
) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """The choice of each size, and rows of table `searches`.

    `proposals` are the sets of the members, by size; `exchanges` are the sets to try around one.
    """
    import numpy as np

    rows: list[dict[str, Any]] = []
    fields: dict[int, list[Entry]] = {size: [] for size in proposals}
    last: dict[tuple[int, frozenset[str]], list[np.ndarray]] = {}  # the samples that a set has seen

    def enter(wanted: Mapping[int, Iterable[tuple[str, frozenset[str]]]]) -> None:
        listed = {size: list(sets) for size, sets in wanted.items()}
        forms = form(units for sets in listed.values() for _, units in sets)
        for size, sets in listed.items():
            for member, units in sets:
                if units not in {entry.units for entry in fields[size]}:
                    fields[size].append(Entry(member, units, forms[units]))

    def mean(entry: Entry, repair: str, part: Sequence[np.ndarray]) -> float:
        return float(judges.mean(trials.values(entry.forms[repair]), part))

    def best(entry: Entry, part: Sequence[np.ndarray]) -> str:
        return min(entry.forms, key=lambda repair: mean(entry, repair, part))

    def ordered(field: Sequence[Entry], part: Sequence[np.ndarray]) -> list[Entry]:
        return sorted(
            field, key=lambda entry: (mean(entry, best(entry, part), part), sorted(entry.units))
        )

    def measure(part: Sequence[np.ndarray]) -> dict[Candidate, float]:
        candidates = [
            each for field in fields.values() for entry in field for each in entry.forms.values()
        ]
        _, costs = trials.losses(candidates, np.concatenate(part))
        last.update(
            {(size, entry.units): list(part) for size, field in fields.items() for entry in field}
        )
        return dict(zip(candidates, costs, strict=True))

    enter({size: sets.items() for size, sets in proposals.items()})
    before = 0
    for number, (share, keep) in enumerate(STAGES):
        part = judges.part(0, share)
        spent = measure(part)
        if not number:
            around = {size: ordered(field, part)[:AROUND] for size, field in fields.items()}
            enter(
                {
                    size: [(EXCHANGE, new) for e in field for new in exchanges(e.units)]
                    for size, field in around.items()
                }
            )
            spent = {each: cost + spent.get(each, 0.0) for each, cost in measure(part).items()}
        count = sum(map(len, part))
        for size, field in fields.items():
            staying = ordered(field, part)[:keep]
            for entry in field:
                for repair, candidate in entry.forms.items():
                    names = {
                        "units": sorted(entry.units, key=parse),
                        "member": entry.member,
                        "repair": repair,
                    }
                    counts = {
                        "n_samples": count,
                        "n_new": count - before,
                        "layer_tokens": spent[candidate],
                    }
                    ends = {"loss": mean(entry, repair, part), "kept": entry in staying}
                    rows.append(
                        {"removed": size, "step": size, "stage": str(number + 1)}
                        | names
                        | counts
                        | ends
                    )
            fields[size] = staying if keep > 1 else field
        before = count
    choices: dict[int, dict[str, Any]] = {}
    for size, field in fields.items():
        winner = ordered(field, part)[0]
        repair = best(winner, part)
        members = {}
        for member, units in proposals[size].items():
            seen, forms = last[size, units], form([units])[units]
            entry = Entry(member, units, forms)
            theirs, mine = mean(entry, best(entry, seen), seen), mean(winner, repair, seen)
            facts = {"repair": best(entry, seen), "loss": theirs, "more": theirs - mine}
            members[member] = {
                "units": sorted(units, key=parse),
                **facts,
                "n_samples": sum(map(len, seen)),
            }
        finalists = [
            trials.values(candidate) for entry in field for candidate in entry.forms.values()
        ]
        choices[size] = {
            "units": sorted(winner.units, key=parse),
            "member": winner.member,
            "repair": repair,
            "loss": mean(winner, repair, part),
            "corrected_loss": corrected(finalists, judges, seed),
            "n_samples": sum(map(len, part)),
            "repairs": {name: mean(winner, name, part) for name in winner.forms},
            "members": members,
        }
    for size, choice in choices.items():
        better = [
            other
            for other in sorted(choices)
            if other > size and choices[other]["loss"] < choice["loss"]
        ]
        if better:
            choice["note"] = (
                f"At size {better[0]} the model loses less on these documents than at size {size}."
            )
    return choices, rows


def corrected(losses: Sequence[np.ndarray], judges: Judges, seed: int) -> float:
    """The loss of the least of several sets, (samples,) each, not flattered by its being the least.

    The last half of the documents, on which no set has left, is cut in two: the set with the least loss on one part is
    measured on the other. The mean over many cuts is that of a choice by these few documents.
    """
    import numpy as np

    generator, values = np.random.default_rng(seed), np.array(losses)
    found = []
    for _ in range(CUTS):
        halves: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        for some in judges.part(0.5, 1):
            drawn = generator.permutation(some)
            middle = len(drawn) // 2
            halves[0].append(drawn[:middle] if middle else drawn)
            halves[1].append(drawn[middle:])
        chosen = int(judges.mean(values, halves[0]).argmin())
        found.append(float(judges.mean(values[chosen], halves[1])))
    return float(np.mean(found))


def halved(layers: Iterable[str]) -> frozenset[str]:
    """Both halves of each layer."""
    return frozenset(f"{layer}.{part}" for layer in layers for part in COMPONENTS[1:])


class Rehearsal(Protocol):
    """Stands for the model and the samples of a search, and counts what they are asked for."""

    choosing: np.ndarray
    judges: Judges
    lengths: np.ndarray
    prices: Prices

    def trials(self) -> Trials: ...
    def sweep(self, kind: str) -> None: ...
    def capture(self) -> None: ...
    def forms(
        self, sets: Iterable[frozenset[str]]
    ) -> Mapping[frozenset[str], Mapping[str, Candidate]]: ...


def exchanged(
    units: frozenset[str],
    free: Iterable[str],
    scores: Mapping[str, float],
    most: int,
    prices: Prices,
) -> list[frozenset[str]]:
    """At most `most` sets with one unit exchanged, first those in which a low score goes for a high one by rank.

    If the new unit counts less than the old one, the lowest others go as well; if more, the highest ones may stay.
    """
    back = sorted(units, key=lambda unit: (-scores[unit], parse(unit)))
    out = sorted(set(free) - units, key=lambda unit: (scores[unit], parse(unit)))
    pairs = sorted(
        (i + j, i, one, other) for i, one in enumerate(back) for j, other in enumerate(out)
    )
    found: dict[frozenset[str], None] = {}
    for _, _, one, other in pairs:
        if len(found) == most:
            break
        kept, more = (
            [unit for unit in part if unit not in (one, other)] for part in (reversed(back), out)
        )
        new = frozenset(prices.enough([other, *kept, *more], prices.size(units)))
        if prices.size(new) >= prices.size(units):
            found[new] = None
    return list(found)


def rehearse(
    rehearsal: Rehearsal, units: Sequence[str], sizes: Sequence[int], options: Any
) -> None:
    """Ask for what a search asks for, with drawn proposals, so that `rehearsal` counts it."""
    import numpy as np

    from lamina.modules import load
    from lamina.selection.trials import Search

    draw, prices = np.random.default_rng(0), rehearsal.prices
    members = list(options.members)
    kinds = [options.units]
    if options.units == "both":
        kinds.append("layer")
        members += [name + OF_LAYERS for name in members if name in METRICS]
    for kind in kinds:
        rehearsal.sweep(kind)
    searching = [kind for kind in Selector.kinds() if kind.SEARCHES]
    if {*options.members} - {*METRICS, *(kind.title() for kind in searching)}:
        rehearsal.capture()
    for kind in searching:
        if kind.title() in options.members:
            own = kind.from_options({"strategy": kind.title(), "metric": options.metric})
            search = Search(kind.title(), rehearsal.trials(), rehearsal.choosing, rehearsal.lengths)
            load(f"{Selector.PACKAGE}.{kind.title()}").find(search, units, sizes, own)

    proposals: dict[int, dict[str, frozenset[str]]] = {}
    for size in sizes:
        drawn = [prices.enough(draw.permutation(units).tolist(), size) for _ in members]
        proposals[size] = dict(zip(members, map(frozenset, drawn), strict=True))
    scores = {unit: float(draw.random()) for unit in units}
    decide(
        rehearsal.trials(),
        rehearsal.judges,
        proposals,
        lambda each: exchanged(each, units, scores, options.exchanges, prices),
        rehearsal.forms,
        0,
    )

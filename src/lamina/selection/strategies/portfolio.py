"""A portfolio: metrics and strategies propose sets of each size, and held-out documents decide.

No single metric is safe for whole sets, and neither is a repair. So the members of the portfolio
see one part of the calibration, the other part judges their sets, few of its documents first and
all in the end, each set with every repair that is listed and with none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, Self

from pydantic import model_validator

from lamina.models.units import COMPONENTS
from lamina.options.entry import Filled, Weights, option, seed_option
from lamina.options.explain import invalid, join_words
from lamina.options.metrics import METRICS, MetricName
from lamina.options.selectors import Selector

if TYPE_CHECKING:
    import numpy as np

    from lamina.engine.candidates import Candidate
    from lamina.selection.plans import UnitPrices
    from lamina.selection.tournament import JudgeDocuments
    from lamina.selection.trials import Trials

# After the name of a metric that proposes whole layers as well as sub-layers.
OF_LAYERS = " (layers)"
BOUNDARY_METRIC = "cosine"  # by which strategies compare boundaries


class Portfolio(Selector):
    """Takes the best set that its members propose, judged as a whole on held-out documents.

    The members choose by one part of the calibration: metrics by one sweep of single removals,
    strategies by the similarities of the streams. Every set is measured on the other part
    (`held_back`), or on the calibration `judge`, together with exchanges of one unit around the
    best sets, and with every one of `repairs` in place. The sets with the largest losses on a
    quarter and on half of these documents are dropped; the least loss on all of them wins. Its loss
    is corrected for being the best of many: the last half of the documents, on which no set was
    dropped, is cut in two many times, one part chooses among the sets and the other measures.

    With `units: both`, metrics propose sub-layers, and once more whole layers; strategies that read
    the streams propose whole layers. A layer counts as its two sub-layers, so that all of them
    compete.
    """

    SEARCHES = True
    SEARCH = "lamina.selection.judging"
    CHOICE = (
        "of the sets that several metrics and strategies proposed, the one with the least loss on "
        "held-out documents was removed"
    )

    strategy: Literal["portfolio"] = "portfolio"
    metric: MetricName = option("Metric whose loss on the judging documents decides.", "perplexity")
    members: list[Filled] = option(
        "Metrics by which the lowest units are proposed, and strategies: those that read the "
        "streams of the unpruned model, and those that search, which cost much more.",
        ["block", "clusters", "cosine", "accuracy", "perplexity", "output_kl"],
        min_length=1,
    )
    exchanges: int = option(
        "Sets of each size that are tried around the best proposals, one unit exchanged.", 16, ge=0
    )
    repairs: list[Filled] = option(
        "Repairs (names under `repairs`) with which every set is measured as well as bare.",
        [],
        shown_default="none",
    )
    judge: Filled | None = option(
        "Calibration whose documents judge; `null` takes the part `held_back` of the variant's "
        "own.",
        None,
    )
    held_back: float = option(
        "Share of the calibration that the members never see, and that judges.", 0.5, gt=0, lt=1
    )
    also: Weights = option(
        "General text that judges together with the task: calibrations, and the weight of their "
        "loss (nats per token) next to the mean loss of the task's documents.",
        {},
        allowed="weights above 0 by calibration, such as {corpus: 1}",
        shown_default="none",
    )
    seed: int = seed_option()

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        comparing_runs = [kind.title() for kind in Selector.kinds() if kind.CAPTURED]
        searching = [
            kind.title() for kind in Selector.kinds() if kind.SEARCHES and kind is not type(self)
        ]
        metrics = [
            name for name, metric in METRICS.items() if metric.pass_ in ("removal", "stream")
        ]
        proposing = [*comparing_runs, *searching, *metrics]
        for name in self.members:
            if name not in proposing:
                raise invalid(
                    f"'{name}' proposes no sets. Choose among {join_words(proposing)}.", "members"
                )
            if name in comparing_runs and self.units not in ("layer", "both"):
                raise invalid(
                    f"'{name}' proposes whole layers only. Write `units: layer` or `units: both`.",
                    "members",
                )
        return self

    @property
    def modules(self) -> tuple[str, ...]:
        metrics = [
            METRICS[name].module
            for name in (self.metric, BOUNDARY_METRIC, *self.members)
            if name in METRICS
        ]
        strategies = [f"{self.PACKAGE}.{name}" for name in self.members if name not in METRICS]
        return (f"{self.PACKAGE}.{self.strategy}", *dict.fromkeys([*metrics, *strategies]))


def both_sub_layers(layers: Iterable[str]) -> frozenset[str]:
    """The attention and the MLP of each layer."""
    return frozenset(f"{layer}.{component}" for layer in layers for component in COMPONENTS[1:])


class Rehearsal(Protocol):
    """Stands for a model and its samples in `rehearse`, and counts their work.

    choosing: Indices of the samples that choose.
    judges: Those that judge.
    lengths: Tokens of every sample.
    """

    prices: UnitPrices
    choosing: np.ndarray
    judges: JudgeDocuments
    lengths: np.ndarray

    def open_trials(self) -> Trials:
        """Trials whose measurements are counted."""

    def count_sweep(self, kind: str) -> None:
        """Count a sweep of single removals."""

    def count_capture(self) -> None:
        """Count a pass for the similarities of streams."""

    def form_candidates(
        self, sets: Iterable[frozenset[str]]
    ) -> Mapping[frozenset[str], Mapping[str, Candidate]]:
        """The candidates of sets with each repair, whose fits are counted."""


def rehearse(
    rehearsal: Rehearsal, units: Sequence[str], sizes: Sequence[int], options: Portfolio
) -> None:
    """Ask for what a search asks for, with drawn proposals, so that `rehearsal` counts it."""
    from importlib import import_module

    import numpy as np

    from lamina.selection.tournament import Tournament, exchange_units
    from lamina.selection.trials import Search

    generator = np.random.default_rng(0)
    prices = rehearsal.prices
    members = list(options.members)
    unit_kinds = [options.units]
    if options.units == "both":
        unit_kinds.append("layer")
        members += [name + OF_LAYERS for name in members if name in METRICS]
    for kind in unit_kinds:
        rehearsal.count_sweep(kind)
    searching_strategies = {kind.title(): kind for kind in Selector.kinds() if kind.SEARCHES}
    if set(options.members) - set(METRICS) - set(searching_strategies):
        rehearsal.count_capture()
    for name, selector in searching_strategies.items():
        if name in options.members:
            own_options = selector.from_options({"strategy": name, "metric": options.metric})
            search = Search(name, rehearsal.open_trials(), rehearsal.choosing, rehearsal.lengths)
            import_module(f"{Selector.PACKAGE}.{name}").find(search, units, sizes, own_options)
    proposals: dict[int, dict[str, frozenset[str]]] = {size: {} for size in sizes}
    for size in sizes:
        for member in members:
            order = generator.permutation(units).tolist()
            proposals[size][member] = frozenset(prices.take_enough(order, size))
    score_by_unit = {unit: float(generator.random()) for unit in units}

    def exchange(around: frozenset[str]) -> list[frozenset[str]]:
        return exchange_units(around, units, score_by_unit, options.exchanges, prices)

    tournament = Tournament(rehearsal.open_trials(), rehearsal.judges, rehearsal.form_candidates)
    tournament.play(proposals, exchange)
    tournament.choose(seed=0)

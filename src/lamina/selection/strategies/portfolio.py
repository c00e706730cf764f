"""A portfolio: metrics and strategies propose sets of each size, and held-out documents decide.

No single metric is safe for whole sets, and neither is a repair. So the members of the portfolio
see one part of the calibration, and the other part judges their sets, each bare and with every
listed repair. The first rounds use few of its documents, the last one all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import model_validator

from lamina.models.units import COMPONENTS, parse_unit
from lamina.options.entry import Filled, Spelt, Weights, option, seed_option
from lamina.options.explain import invalid, join_words
from lamina.options.metrics import METRICS, MetricName
from lamina.options.selectors import Selector, check_whole_layers

if TYPE_CHECKING:
    from lamina.engine.candidates import Candidate
    from lamina.selection.rounds import Round, SearchSpace

# Appended to the name of a metric that proposes whole layers as well as sub-layers.
OF_LAYERS = " (layers)"
BOUNDARY_METRIC = "cosine"  # with which strategies compare boundaries


class Portfolio(Selector):
    """Takes the best set that its members propose, judged as a whole on held-out documents.

    The members use one part of the calibration: metrics rank units by one sweep of single
    removals, strategies compare residual streams. The other part (`held_back`), or the calibration
    `judge`, judges the sets. Each set is measured without a repair and with each of `repairs`. Sets
    that differ from the best ones by one exchanged unit compete too. After a quarter and after half
    of the judge documents, the sets with the largest losses are dropped. The set with the lowest
    loss on all judge documents wins. This loss is corrected for selecting the best of many: the
    second half of the documents, on which no set was dropped, is split in two many times; one part
    chooses among the sets and the other measures the choice.

    With `units: both`, metrics propose sub-layers, and separately whole layers. Strategies that
    read the residual streams propose whole layers. A layer counts as its two sub-layers, so that
    all sets compete.
    """

    SEARCHES = True
    SEARCH = "lamina.selection.judging"
    CHOICE = (
        "several metrics and strategies proposed sets, and the one with the lowest loss on "
        "held-out documents was removed"
    )

    strategy: Literal["portfolio"] = "portfolio"
    metric: MetricName = option("Metric whose loss on the judge documents decides.", "perplexity")
    members: list[Filled] = option(
        "Metrics, which propose their lowest-scoring units, and strategies: `block` and "
        "`clusters`, which read the residual streams of the unpruned model, `deepest`, and the "
        "searches `pairwise` and `rearrange`, which cost much more (`rearrange` also moves "
        "layers).",
        ["block", "clusters", "cosine", "accuracy", "perplexity", "output_kl"],
        min_length=1,
    )
    sets: list[list[Annotated[int, Spelt]]] = option(
        "Your own sets of layers, such as those of a paper. Each competes at its size.",
        [],
        shown_default="none",
    )
    exchanges: int = option(
        "Maximum number of sets tried around each of the two best proposals of a size; each "
        "differs from it by one exchanged unit.",
        16,
        ge=0,
    )
    repairs: list[Filled] = option(
        "Repairs (names under `repairs`) with which every set is measured, in addition to no "
        "repair.",
        [],
        shown_default="none",
    )
    judge: Filled | None = option(
        "Calibration whose documents judge the sets; `null` takes the `held_back` part of the "
        "variant's own.",
        None,
    )
    judge_by: Literal["loss", "written"] = option(
        "What decides between the last four sets of a size: their `loss`, or the number of judge "
        "questions that they answer right when they generate with a KV cache (`written`). The "
        "judge questions must then be those of a task with generated answers.",
        "loss",
    )
    held_back: float = option(
        "Share of the calibration that judges, and that the members do not use.", 0.5, gt=0, lt=1
    )
    also: Weights = option(
        "General text that judges together with the task: calibrations with the weight of their "
        "loss (nats per token), where the mean loss of the task's documents has weight 1.",
        {},
        allowed="weights above 0 by calibration, such as {corpus: 1}",
        shown_default="none",
    )
    seed: int = seed_option()

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        of_layers = [kind.title() for kind in Selector.kinds() if kind.CAPTURED or kind.PROPOSES]
        searching = [
            kind.title()
            for kind in Selector.kinds()
            if kind.SEARCHES and not kind.GROWS and kind is not type(self)
        ]
        moving = [kind.title() for kind in Selector.kinds() if kind.MOVES]
        metrics = [
            name for name, metric in METRICS.items() if metric.pass_ in ("removal", "stream")
        ]
        proposing = [*of_layers, *searching, *metrics]
        for name in self.members:
            if name not in proposing:
                raise invalid(
                    f"'{name}' proposes no sets. Choose among {join_words(proposing)}.", "members"
                )
            if name in of_layers and self.units not in ("layer", "both"):
                raise invalid(
                    f"'{name}' proposes whole layers only. Write `units: layer` or `units: both`.",
                    "members",
                )
            if name in moving:
                check_whole_layers(self.units, name, "moves whole layers")
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


def foresee_rounds(space: SearchSpace, options: Portfolio) -> Iterator[Round]:
    """The sweeps of the members, then a tournament of random sets and exchanges around them."""
    from importlib import import_module

    import numpy as np

    from lamina.engine.candidates import Candidate
    from lamina.selection.rounds import Round
    from lamina.selection.tournament import N_EXCHANGED, ROUNDS, exchange_units

    members = list(options.members)
    swept = list(space.units)
    if options.units == "both":
        swept += dict.fromkeys(str(parse_unit(unit)[0]) for unit in space.units)
        members += [name + OF_LAYERS for name in members if name in METRICS]
    yield Round([Candidate(), *(Candidate(frozenset({unit})) for unit in swept)], 1.0)
    searching = {kind.title(): kind for kind in Selector.kinds() if kind.SEARCHES}
    if any(kind.CAPTURED and kind.title() in options.members for kind in Selector.kinds()):
        yield Round([Candidate()], 1.0)  # for the similarities of the streams
    for name in searching.keys() & set(options.members):
        own_options = searching[name].from_options({"strategy": name, "metric": options.metric})
        yield from import_module(f"{Selector.PACKAGE}.{name}").foresee_rounds(space, own_options)

    generator = np.random.default_rng(0)
    scores = {unit: float(generator.random()) for unit in space.units}
    entrants: dict[int, list[Candidate]] = {}
    for size in space.sizes:
        orders = [generator.permutation(space.units).tolist() for _ in members]
        proposed = [frozenset(space.prices.take_enough(order, size)) for order in orders]
        # Most of the best sets are neighbours of each other and share neighbours.
        around = [proposed[0]]
        for _ in range(N_EXCHANGED):
            exchanged = exchange_units(
                around[-1], space.units, scores, options.exchanges, space.prices
            )
            proposed += exchanged
            around += exchanged[:1]
        entrants[size] = [Candidate(units) for units in dict.fromkeys(proposed)]
    seen_share = 0.0
    for share, n_survivors in ROUNDS:
        competing = [candidate for of_size in entrants.values() for candidate in of_size]
        yield Round(competing, share - seen_share, is_judging=True)
        seen_share = share
        # The last ones are exchanges around one set, so they overlap like real finalists.
        entrants = {size: of_size[-n_survivors:] for size, of_size in entrants.items()}

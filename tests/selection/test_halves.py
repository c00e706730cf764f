"""Halves of layers at the price of their parameters: every strategy, against all sets and models really cut."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.data.calibrations import CalibrationSamples
from lamina.data.prepare import prepare_calibration
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of, sublayers_of
from lamina.models.units import all_units
from lamina.options.selectors import Selector
from lamina.selection import choosing, judging, tournament
from lamina.selection.plans import StepEvidence, UnitPrices
from lamina.selection.sets import SearchRequest
from lamina.selection.strategies import evolutionary, pairwise, portfolio
from lamina.selection.trials import Search, Trials
from lamina_workflow.cost import rehearsal
from lamina_workflow.cost.work import Tokens
from tests import ROOT
from tests.given import tiny
from tests.selection.test_portfolio import KEYS, given, nats

DEPTH, ATTENTION = 5, 0.3
HALVES = all_units(DEPTH, "both")
PRICES = UnitPrices("both", ATTENTION)


def price(units: Iterable[str], attention: float = ATTENTION) -> float:
    return sum({"attention": attention, "mlp": 1 - attention}[unit.split(".")[1]] for unit in units)


def minimal(units: Iterable[str], size: int, attention: float = ATTENTION) -> bool:
    """Whether units are worth the layers of a size, and none of them could stay."""
    whole = price(units, attention)
    return whole > size - 1e-6 and all(
        whole - price([unit], attention) < size - 1e-6 for unit in units
    )


def check(units: Sequence[str], size: int, attention: float = ATTENTION) -> None:
    assert len(set(units)) == len(units) and minimal(units, size, attention)


SETS = [frozenset(some) for count in range(1, 8) for some in combinations(HALVES, count)]


class Halved:
    """Losses of sets of halves, which interact."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.alone, self.pairs = (
            draw.uniform(0.2, 1, 10),
            np.triu(draw.uniform(-0.1, 0.3, (10, 10)), 1),
        )

    def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
        return np.array([[self.loss(each.removed)] * len(list(numbers)) for each in candidates])

    def loss(self, removed: Iterable[str]) -> float:
        gone = sorted(HALVES.index(unit) for unit in removed)
        return float(self.alone[gone].sum() + self.pairs[np.ix_(gone, gone)].sum())


def test_enough_of_an_order_is_its_first_units_without_those_that_could_stay() -> None:
    for seed in range(30):
        order = np.random.default_rng(seed).permutation(HALVES).tolist()
        taken = PRICES.take_enough(order, 2)
        check(taken, 2)
        first = order[: 1 + max(map(order.index, taken))]
        assert price(first[:-1]) < 2 - 1e-6 and set(taken) <= set(first)
    assert UnitPrices().take_enough(["3", "1", "2"], 2) == ["3", "1"]
    assert UnitPrices().sum_prices(["3", "1.@a", "2.mlp"]) == 2


@pytest.mark.parametrize("strategy", ["random", "deepest"])
def test_what_is_drawn_or_stands_deepest(strategy: str) -> None:
    plans = {}
    for seed in range(6):
        told = {"strategy": strategy, "units": "both", "protect": [1]}
        options = Selector.from_options(told | ({"seed": seed} if strategy == "random" else {}))
        for size in (1, 2, 3):
            plan = choosing.choose_plan(
                options, KEYS | {"removed": size}, DEPTH, StepEvidence(), attention_share=ATTENTION
            )
            check(plan.units, size)
            assert (
                plan.removed == size
                and plan.kind == "both"
                and not {"1.mlp", "1.attention"} & set(plan.units)
            )
            plans[seed, size] = plan.units
    if strategy == "random":
        assert len({tuple(units) for units in plans.values()}) > 12
        assert set(chain(*plans.values())) == {unit for unit in HALVES if unit[0] != "1"}
    else:
        assert set(plans[0, 2]) == {"3.mlp", "3.attention", "2.mlp", "2.attention"}


def test_evolution_finds_the_best_of_all_sets_of_a_price_and_tries_no_others() -> None:
    options, found = (
        Selector.from_options(
            {"strategy": "evolutionary", "metric": "perplexity", "units": "both"}
        ),
        0,
    )
    for seed in range(6):
        toy = Halved(seed)
        one = Search("x", Trials(toy, 10, prices=PRICES), np.arange(10), np.full(10, 50))
        sets = evolutionary.find(one, HALVES, [1, 2], options)
        for size, end in sets.items():
            check(sorted(end.removed), size)
            needed = [each for each in SETS if minimal(each, size)]
            found += toy.loss(end.removed) == pytest.approx(min(map(toy.loss, needed)))
        for row in one.rows:
            check(row["units"], row["removed"])
    assert found >= 11


def test_pairwise_takes_the_least_sum_of_a_price() -> None:
    """Against all subsets: with negative effects, more would lose less, but goes at its price only."""
    prices = np.array([price([unit]) for unit in HALVES])
    for seed in range(8):
        draw = np.random.default_rng(seed)
        alone, pairs = draw.normal(0, 1, 10), np.triu(draw.normal(0, 0.5, (10, 10)), 1)
        for size in (1, 2, 3):
            units = [
                HALVES[number] for number in pairwise.minimise(alone, pairs + pairs.T, size, prices)
            ]
            check(units, size)

            def value(
                gone: Iterable[str], alone: np.ndarray = alone, pairs: np.ndarray = pairs
            ) -> float:
                at = sorted(HALVES.index(unit) for unit in gone)
                return float(alone[at].sum() + pairs[np.ix_(at, at)].sum())

            allowed = [each for each in SETS if size - 1e-6 < price(each) < size + ATTENTION - 1e-6]
            assert value(units) == pytest.approx(min(map(value, allowed)))


def test_exchanges_keep_the_price() -> None:
    scores = {unit: float(number) for number, unit in enumerate(HALVES)}
    around = frozenset({"3.attention", "3.mlp", "1.mlp"})
    found = tournament.exchange_units(around, HALVES, scores, 99, PRICES)
    assert len(set(found)) == len(found) > 10 and around not in found
    for each in found:
        check(sorted(each), 1)
    # The lowest half comes for the highest one, and the rest makes up for its price.
    assert "0.attention" in found[0] and "3.mlp" not in found[0]


def shares(model: Any) -> dict[str, dict[str, float]]:
    """What a manifest says of a model's halves."""
    counts = {
        part: sum(weight.numel() for each in some for weight in each.module.parameters())
        for part, some in sublayers_of(layers_of(model)[0]).items()
    }
    return {
        "attention_share": {
            "parameters": counts["attention"] / sum(counts.values()),
            "latency": 0.45,
        }
    }


@pytest.mark.parametrize("strategy", ["evolutionary", "pairwise", "portfolio"])
def test_searched_sets_are_measured_as_models_really_cut(strategy: str, tmp_path: Path) -> None:
    model, calibration = tiny.model(depth=DEPTH), given(24)
    told: dict[str, Any] = {"strategy": strategy, "metric": "perplexity", "units": "both"}
    own = {
        "evolutionary": {"offspring": 4, "generations": 2},
        "portfolio": {"protect": [0], "cost": "latency"},
    }
    told |= own.get(strategy, {})
    options = Selector.from_options(told)
    request = SearchRequest(
        model, {"c": calibration}, options, [1, 2], KEYS, "acc", 4000, manifest=shares(model)
    )
    plans, rows = import_module(options.SEARCH).search_plans(request)
    ends = [
        row
        for row in rows
        if row["stage"] == ("3" if strategy == "portfolio" else "winner") and row["removed"]
    ]
    samples = calibration.samples
    if strategy == "portfolio":
        samples = tuple(judging.split_documents({"c": calibration}, options)[1]["c"])
    for row in ends:
        cut = materialise(model, {"units": row["units"]})
        losses = nats(cut, samples)
        if strategy != "portfolio":
            losses = losses[judging.split_samples(calibration.sequences(), options.held_back, 0)[0]]
        assert row["loss"] == pytest.approx(losses.mean(), abs=1e-3)
    for size, plan in zip((1, 2), plans, strict=True):
        check(plan.units, size, options.attention(shares(model)["attention_share"]))
        assert (
            len(plan.scores) == len(plan.units) == len(plan.accuracy_before)
            and plan.removed == size
        )


def test_whole_layers_and_halves_compete_in_a_portfolio() -> None:
    """Whole layers are proposed as over layers, as both their halves; metrics propose halves by `lowest` besides."""
    model, calibration = tiny.model(depth=DEPTH), given(16)
    members, sets = ["block", "clusters", "cosine", "perplexity"], {}
    for kind in ("layer", "both"):
        options = Selector.from_options(
            {"strategy": "portfolio", "members": members, "units": kind}
        )
        request = SearchRequest(
            model, {}, options, [1, 2], KEYS, "acc", 4000, manifest=shares(model)
        )
        sets[kind], scores = judging.propose_sets(request, calibration)
        assert scores.keys() == set(all_units(DEPTH, kind))
    for size in (1, 2):
        whole = {
            f"{name} (layers)": portfolio.both_sub_layers(units)
            for name, units in sets["layer"][size].items()
        }
        assert whole.items() <= sets["both"][size].items()
        assert set(sets["both"][size]) == {*whole, "cosine", "perplexity"}
    alone = {
        unit: nats(materialise(model, {"units": [unit]}), calibration.samples).mean()
        for unit in HALVES
    }
    base, attention = (
        nats(model, calibration.samples).mean(),
        shares(model)["attention_share"]["parameters"],
    )
    needed = [each for each in SETS if minimal(each, 2, attention)]
    least = min(sum(alone[unit] - base for unit in each) for each in needed)
    assert sum(alone[unit] - base for unit in sets["both"][2]["perplexity"]) == pytest.approx(
        least, abs=1e-3
    )


def test_a_portfolio_of_halves_on_the_embedded_model() -> None:
    """From its documents to models really cut, with the price that the manifest states."""
    folder = ROOT / "resources/reference"
    model, told = (
        load_folder(str(folder), "float32", False),
        {"task": "microworld_addition", "split": "validation"},
    )
    manifest = {
        "path": str(folder),
        "source": str(folder),
        "trust_remote_code": False,
        "chat_template": False,
    }
    manifest |= {
        "fewshot_as_turns": None,
        "system_prompt": None,
        "template_arguments": {},
        "vocabulary": 512,
    }
    entry = import_module("lamina.options.calibrations").Calibration.from_options(
        told | {"limit": 24}
    )
    calibration: CalibrationSamples = prepare_calibration("c", entry, manifest, ROOT)
    options = Selector.from_options(
        {"strategy": "portfolio", "units": "both", "exchanges": 2, "members": ["accuracy"]}
    )
    request = SearchRequest(model, {"c": calibration}, options, [2], KEYS, manifest=shares(model))
    (plan,), rows = judging.search_plans(request)
    check(plan.units, 2, shares(model)["attention_share"]["parameters"])
    judges = judging.split_documents({"c": calibration}, options)[1]["c"]
    losses = nats(materialise(model, {"units": plan.units}), judges)
    assert plan.choice["loss"] == pytest.approx(losses.mean(), abs=1e-3)
    assert {"accuracy", "accuracy (layers)"} == set(plan.choice["members"])
    assert {row["member"] for row in rows if "member" in row} == {
        "accuracy",
        "accuracy (layers)",
        "exchange",
    }


def test_a_rehearsal_counts_sublayers() -> None:
    """Of a portfolio: more than for layers, by the sweep of single sub-layers."""
    tokens = {"own": Tokens(100, 1000, 1000, 1000, longest=10, lines=(10,) * 100)}
    model = rehearsal.SearchedModel(8, 32, 4000, ATTENTION)
    layer_tokens: dict[tuple[str, str], float] = {}
    for kind in ("layer", "both"):
        for strategy in ("portfolio", "evolutionary"):
            options = Selector.from_options(
                {"strategy": strategy, "metric": "perplexity", "units": kind}
            )
            work = rehearsal.search_work("own", tokens, model, [1, 2], options, {})
            layer_tokens[kind, strategy] = work.layer_tokens
    portfolio_of_layers = layer_tokens["layer", "portfolio"]
    assert portfolio_of_layers < layer_tokens["both", "portfolio"] < 5 * portfolio_of_layers
    assert layer_tokens["layer", "evolutionary"] < layer_tokens["both", "evolutionary"]

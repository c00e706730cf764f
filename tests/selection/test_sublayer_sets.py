"""Sets of sub-layers at the price of their parameters (`units: both`), by every strategy.

They are compared with all sets of a price, tried one by one, and with models that were really cut.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import import_module
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from lamina.data.prepare import prepare_calibration
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.units import all_units
from lamina.options.calibrations import Calibration
from lamina.options.selectors import Selector
from lamina.selection import choosing, judging, proposing, tournament
from lamina.selection.plans import Plan, StepEvidence, UnitPrices
from lamina.selection.sets import SearchRequest
from lamina.selection.strategies import pairwise, portfolio
from lamina.selection.trials import Search, Trials, split_samples
from lamina_workflow.cost import searches
from lamina_workflow.cost.work import Tokens
from tests import ROOT
from tests.given import tiny
from tests.given.cut_models import naive_gold_losses
from tests.selection.examples import KEYS, random_calibration

DEPTH = 5
ATTENTION_SHARE = 0.3
SUBLAYERS = all_units(DEPTH, "both")
PRICES = UnitPrices("both", ATTENTION_SHARE)


def price_of(units: Iterable[str], attention_share: float = ATTENTION_SHARE) -> float:
    """What sub-layers count together, in layers."""
    prices = {"attention": attention_share, "mlp": 1 - attention_share}
    return sum(prices[unit.split(".")[1]] for unit in units)


def is_minimal(units: Collection[str], size: int, attention_share: float = ATTENTION_SHARE) -> bool:
    """Whether sub-layers are worth the layers of a size, and none of them could stay."""
    price = price_of(units, attention_share)
    prices_without_one = [price - price_of([unit], attention_share) for unit in units]
    return price > size - 1e-6 and max(prices_without_one) < size - 1e-6


def assert_minimal(
    units: Sequence[str], size: int, attention_share: float = ATTENTION_SHARE
) -> None:
    assert len(set(units)) == len(units)
    assert is_minimal(units, size, attention_share)


def all_sets() -> list[frozenset[str]]:
    """Every set of up to seven of the ten sub-layers."""
    sets: list[frozenset[str]] = []
    for count in range(1, 8):
        sets += [frozenset(units) for units in combinations(SUBLAYERS, count)]
    return sets


ALL_SETS = all_sets()


class SublayerLosses:
    """Losses that are a function of the removed sub-layers, which interact in pairs."""

    def __init__(self, single_effects: np.ndarray, pair_effects: np.ndarray) -> None:
        """`pair_effects` has them above its diagonal, and zeros elsewhere."""
        self.single_effects = single_effects
        self.pair_effects = pair_effects

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        n_samples = len(list(sample_indices))
        losses = np.array([self.loss(candidate.edits) for candidate in candidates])
        return np.repeat(losses[:, None], n_samples, axis=1)

    def loss(self, removed_units: Iterable[str]) -> float:
        indices = sorted(SUBLAYERS.index(unit) for unit in removed_units)
        pair_sum = self.pair_effects[np.ix_(indices, indices)].sum()
        return float(self.single_effects[indices].sum() + pair_sum)


def test_enough_of_an_order_is_its_first_units_without_those_that_could_stay() -> None:
    for seed in range(30):
        order = np.random.default_rng(seed).permutation(SUBLAYERS).tolist()

        taken = PRICES.take_enough(order, 2)

        assert_minimal(taken, 2)
        n_looked_at = 1 + max(order.index(unit) for unit in taken)
        assert price_of(order[: n_looked_at - 1]) < 2 - 1e-6


def test_units_of_one_kind_count_one_and_replacements_nothing() -> None:
    prices = UnitPrices()

    assert prices.take_enough(["3", "1", "2"], 2) == ["3", "1"]
    assert prices.sum_prices(["3", "1=a:1", "2.mlp"]) == 2


def choose_sublayers(size: int, **options: Any) -> Plan:
    """The plan of a strategy that needs no evidence; layer 1 is protected."""
    selector = Selector.from_options({"units": "both", "protect": [1], **options})
    keys = KEYS | {"removed": size}
    return choosing.choose_plan(
        selector, keys, DEPTH, StepEvidence(), attention_share=ATTENTION_SHARE
    )


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("options", [{"strategy": "deepest"}, {"strategy": "random", "seed": 4}])
def test_random_and_deepest_sublayers_have_the_price_of_a_size(
    options: dict[str, Any], size: int
) -> None:
    plan = choose_sublayers(size, **options)

    assert_minimal(plan.units, size)
    assert plan.removed == size
    assert plan.kind == "both"
    assert not {"1.mlp", "1.attention"} & set(plan.units)


def test_the_deepest_sublayers_are_those_before_the_last_layer() -> None:
    plan = choose_sublayers(2, strategy="deepest")

    assert set(plan.units) == {"3.mlp", "3.attention", "2.mlp", "2.attention"}


def test_random_sublayers_differ_by_seed_and_any_may_be_drawn() -> None:
    plans: set[tuple[str, ...]] = set()
    for seed in range(6):
        for size in (1, 2, 3):
            plan = choose_sublayers(size, strategy="random", seed=seed)
            plans.add(tuple(plan.units))

    drawn_units = set(chain.from_iterable(plans))
    assert len(plans) > 12
    assert drawn_units == {unit for unit in SUBLAYERS if unit[0] != "1"}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pairwise_takes_the_least_sum_of_a_price(size: int) -> None:
    """With negative effects, larger sets would lose less, but do not have the price."""
    options = Selector.from_options(
        {"strategy": "pairwise", "metric": "perplexity", "units": "both"}
    )
    sets_of_price = [
        units for units in ALL_SETS if size - 1e-6 < price_of(units) < size + ATTENTION_SHARE - 1e-6
    ]
    for seed in range(8):
        generator = np.random.default_rng(seed)
        single_effects = generator.normal(0, 1, 10)
        pair_effects = np.triu(generator.normal(0, 0.5, (10, 10)), 1)
        toy = SublayerLosses(single_effects, pair_effects)
        search = Search("x", Trials(toy, 10, prices=PRICES), np.arange(10))

        found = pairwise.find(search, SUBLAYERS, [size], options)

        units = sorted(found[size].edits)
        assert_minimal(units, size)
        least_loss = min(toy.loss(units) for units in sets_of_price)
        assert toy.loss(units) == pytest.approx(least_loss)


def test_exchanges_keep_the_price() -> None:
    scores = {unit: float(rank) for rank, unit in enumerate(SUBLAYERS)}
    units = frozenset({"3.attention", "3.mlp", "1.mlp"})

    exchanged = tournament.exchange_units(units, SUBLAYERS, scores, 99, PRICES)

    assert len(exchanged) > 10
    assert len(set(exchanged)) == len(exchanged)
    assert units not in exchanged
    for exchanged_units in exchanged:
        assert_minimal(sorted(exchanged_units), 1)
    # The lowest sub-layer replaces the highest one first, and others make up for its price.
    assert "0.attention" in exchanged[0]
    assert "3.mlp" not in exchanged[0]


def manifest_of(model: PreTrainedModel) -> dict[str, dict[str, float]]:
    """What a model's manifest says of its sub-layers; the share of the latency is made up."""
    n_parameters = {"self_attn": 0, "mlp": 0}
    for name, weight in model.named_parameters():
        for module in n_parameters:
            if f".{module}." in name:
                n_parameters[module] += weight.numel()
    parameter_share = n_parameters["self_attn"] / sum(n_parameters.values())
    return {"attention_share": {"parameters": parameter_share, "latency": 0.45}}


SEARCHES: dict[str, dict[str, Any]] = {
    "pairwise": {},
    "portfolio": {"protect": [0], "cost": "latency"},
}


@pytest.mark.parametrize("strategy", SEARCHES)
def test_searched_sets_are_measured_as_models_really_cut(strategy: str) -> None:
    model = tiny.model(depth=DEPTH)
    calibration = random_calibration(24)
    options = Selector.from_options(
        {
            "strategy": strategy,
            "metric": "perplexity",
            "units": "both",
            **SEARCHES[strategy],
        }
    )
    manifest = manifest_of(model)
    request = SearchRequest(
        model, {"c": calibration}, options, [1, 2], KEYS, "acc", 4000, manifest=manifest
    )

    plans, rows = import_module(options.SEARCH).search_plans(request)

    if strategy == "portfolio":
        last_stage = "3"
        _, judges = judging.split_documents({"c": calibration}, options)
        samples = judges["c"]
    else:
        last_stage = "winner"
        seen, _ = split_samples(calibration.sequences(), options.held_back, 0)
        samples = [calibration.samples[index] for index in seen]
    last_rows = [row for row in rows if row["stage"] == last_stage and row["removed"]]
    assert last_rows
    for row in last_rows:
        losses = naive_gold_losses(model, samples, row["units"])
        assert row["loss"] == pytest.approx(losses.mean(), abs=1e-3)
    attention_share = options.attention(manifest["attention_share"])
    assert [plan.removed for plan in plans] == [1, 2]
    for plan in plans:
        assert_minimal(plan.units, plan.removed, attention_share)
        assert len(plan.scores) == len(plan.accuracy_before) == len(plan.units)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny.model(depth=DEPTH)


Propose = Callable[[str], dict[int, dict[str, frozenset[str]]]]


@pytest.fixture(scope="module")
def propose(model: PreTrainedModel) -> Propose:
    """Gives what the members of a portfolio propose among units of a kind, by size and member."""

    def propose(kind: str) -> dict[int, dict[str, frozenset[str]]]:
        settings = {
            "strategy": "portfolio",
            "members": ["block", "clusters", "cosine", "perplexity"],
            "units": kind,
        }
        options = Selector.from_options(settings)
        manifest = manifest_of(model)
        request = SearchRequest(model, {}, options, [1, 2], KEYS, "acc", 4000, manifest=manifest)
        proposals, scores = proposing.propose_sets(request, random_calibration(16))
        assert scores.keys() == set(all_units(DEPTH, kind))
        return proposals

    return propose


@pytest.mark.parametrize("size", [1, 2])
def test_whole_layers_compete_with_sublayers_in_a_portfolio(propose: Propose, size: int) -> None:
    """What members propose among layers is proposed as both sub-layers of each layer."""
    layer_sets = propose("layer")[size]
    sublayer_sets = propose("both")[size]

    for member, layers in layer_sets.items():
        sublayers = portfolio.both_sub_layers(layers)
        assert sublayer_sets[f"{member} (layers)"] == sublayers
    layer_members = {f"{member} (layers)" for member in layer_sets}
    assert sublayer_sets.keys() == layer_members | {"cosine", "perplexity"}


def test_a_metric_proposes_the_sublayers_that_lose_least_at_a_price(
    propose: Propose, model: PreTrainedModel
) -> None:
    samples = random_calibration(16).samples
    base_loss = naive_gold_losses(model, samples).mean()
    single_effects: dict[str, float] = {}
    for unit in SUBLAYERS:
        single_effects[unit] = naive_gold_losses(model, samples, [unit]).mean() - base_loss

    def summed_effect(units: Iterable[str]) -> float:
        return sum(single_effects[unit] for unit in units)

    proposed_units = propose("both")[2]["perplexity"]

    attention_share = manifest_of(model)["attention_share"]["parameters"]
    sets_of_size = [units for units in ALL_SETS if is_minimal(units, 2, attention_share)]
    least_effect = min(summed_effect(units) for units in sets_of_size)
    assert summed_effect(proposed_units) == pytest.approx(least_effect, abs=1e-3)


def test_a_portfolio_of_sublayers_on_the_embedded_model() -> None:
    """From documents of a task to a model that was really cut, at the price in the manifest."""
    folder = ROOT / "resources/reference"
    model = load_folder(str(folder), "float32", False)
    manifest = {
        "path": str(folder),
        "source": str(folder),
        "trust_remote_code": False,
        "chat_template": False,
        "fewshot_as_turns": None,
        "system_prompt": None,
        "template_arguments": {},
        "vocabulary": 512,
    }
    entry = Calibration.from_options(
        {"task": "microworld_addition", "split": "validation", "limit": 24}
    )
    calibrations = {"c": prepare_calibration("c", entry, manifest, ROOT)}
    options = Selector.from_options(
        {"strategy": "portfolio", "units": "both", "exchanges": 2, "members": ["accuracy"]}
    )
    shares = manifest_of(model)
    request = SearchRequest(model, calibrations, options, [2], KEYS, manifest=shares)

    (plan,), rows = judging.search_plans(request)

    assert_minimal(plan.units, 2, shares["attention_share"]["parameters"])
    _, judges = judging.split_documents(calibrations, options)
    variant = materialise(model, {"units": plan.units})
    losses = naive_gold_losses(variant, judges["c"])
    assert plan.choice["loss"] == pytest.approx(losses.mean(), abs=1e-3)
    members = {"accuracy", "accuracy (layers)"}
    assert plan.choice["members"].keys() == members
    assert {row["member"] for row in rows if "member" in row} == members | {"exchange"}


def count_search_work(strategy: str, kind: str) -> float:
    """The layer-tokens of a search, as `make plan` counts them."""
    tokens = {"own": Tokens(100, 1000, 1000, 1000, longest=10, lines=(10,) * 100)}
    model = searches.SearchedModel(8, 32, 4000, ATTENTION_SHARE)
    options = Selector.from_options({"strategy": strategy, "metric": "perplexity", "units": kind})
    return searches.search_work("own", tokens, model, [1, 2], options, {}).layer_tokens


def test_a_forecast_of_a_search_counts_sublayers() -> None:
    """A portfolio sweeps single sub-layers as well as layers."""
    portfolio_of_layers = count_search_work("portfolio", "layer")
    portfolio_of_sublayers = count_search_work("portfolio", "both")

    assert portfolio_of_layers < portfolio_of_sublayers < 5 * portfolio_of_layers
    assert count_search_work("pairwise", "layer") < count_search_work("pairwise", "both")

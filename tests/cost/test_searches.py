"""The foreseen work of a search, against what the layers of a model really run."""

from typing import Any

import numpy as np
import pytest

from lamina.data import calibrations
from lamina.data.calibrations import CalibrationSamples
from lamina.engine import sweep
from lamina.models import workload
from lamina.models.units import all_units, parse_unit
from lamina.options.repairs import Repair
from lamina.options.selectors import Selector
from lamina.selection import judging
from lamina.selection.evaluator import Evaluator
from lamina.selection.options import Loop
from lamina.selection.sets import SearchRequest
from lamina.selection.trials import Trials, run_search
from lamina_workflow.cost import estimate, searches
from lamina_workflow.cost.searches import SearchedModel
from tests.given import tiny


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"strategy": "pairwise"}, [2, 4]),
        ({"strategy": "pairwise", "units": "mlp", "protect": [0]}, [2, 4]),
        ({"strategy": "rearrange", "moves": 0}, [2, 4]),
        ({"strategy": "repeat", "protect": [0]}, [-1, -3]),
    ],
)
def test_a_search_costs_about_what_its_rounds_do(options: dict[str, Any], sizes: list[int]) -> None:
    selector = Selector.from_options({"metric": "perplexity", **options})
    removable_units = [
        unit for unit in all_units(8, selector.units) if parse_unit(unit)[0] not in selector.protect
    ]
    samples = tiny.samples(tiny.tokens(40, 12).tolist(), context=6)
    n_held_back = round(40 * selector.held_back)
    held_back = np.arange(n_held_back)
    searched = np.arange(n_held_back, 40)

    with sweep.open_session(
        tiny.model(depth=8), samples, token_budget=100_000, outputs=False
    ) as session:
        evaluator = Evaluator(session, "perplexity", "acc")
        trials = Trials(evaluator, 40, count_layer_tokens=lambda: session.layer_tokens)
        run_search(trials, removable_units, sizes, selector, searched, held_back)

    tokens = estimate.count_tokens(samples)
    model = SearchedModel(8, 32, 100_000)
    predicted = searches.search_work("own", {"own": tokens}, model, sizes, selector, {})
    assert predicted.layer_tokens == pytest.approx(session.layer_tokens, rel=0.15)
    assert predicted.naive_layer_tokens > predicted.layer_tokens
    assert predicted.patch_flops == 0


def random_calibration(count: int, length: int, seed: int = 0) -> CalibrationSamples:
    """Different texts of one length."""
    token_ids = tiny.tokens(count, length, seed)
    samples = tiny.samples(token_ids.tolist(), context=length // 2)
    return calibrations.build_calibration(
        samples, tiny.VOCABULARY, source="test", split="test", seed=0
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"also": {"text": 0.5}},
        {"repairs": ["ghost"]},
        {"also": {"text": 0.5}, "repairs": ["ghost", "second"]},
        {"judge": "text"},
        {"members": ["perplexity", "pairwise"]},
        {"members": ["perplexity", "block"], "units": "both", "repairs": ["ghost"]},
    ],
)
def test_a_portfolio_costs_about_what_its_rounds_do(changes: dict[str, Any]) -> None:
    """With text that judges, other judges, and fits of repairs."""
    model = tiny.model(depth=8)
    task = random_calibration(40, 12)
    text = random_calibration(24, 40, seed=1)
    portfolio = {"strategy": "portfolio", "metric": "perplexity", "exchanges": 8}
    selector = Selector.from_options(portfolio | changes)
    ghost = Repair.from_options({"method": "ghost", "data": {"own": 1, "text": 0.1}})
    loop = Loop(repair=ghost, weights=[("own", 1.0), ("text", 0.1)], protect=[], seed=0)
    request = SearchRequest(
        model,
        {"own": task, "text": text},
        selector,
        [2, 3],
        {"model": "m", "calibration": "own", "selector": "s"},
        "acc",
        4000,
        loops=dict.fromkeys(selector.repairs, loop),
        manifest={"attention_share": {"parameters": 0.4}},
    )
    workload.count_work(model)
    work_before = workload.done.layer_tokens
    judging.search_plans(request)
    measured = workload.done.layer_tokens - work_before

    tokens = {
        "own": estimate.count_tokens(task.samples),
        "text": estimate.count_tokens(text.samples),
    }
    searched_model = SearchedModel(8, 32, 4000, 0.4)
    repairs = dict.fromkeys(selector.repairs, ghost)
    predicted = searches.search_work("own", tokens, searched_model, [2, 3], selector, repairs)
    assert 1 / 1.4 < measured / predicted.layer_tokens < 1.4
    assert (predicted.patch_flops > 0) == bool(selector.repairs)


@pytest.mark.parametrize("repairs", [[], ["ghost"]])
def test_a_portfolio_counts_the_sets_that_it_measures(repairs: list[str]) -> None:
    """Each in each round, however many forms it has; the members' removals of one layer first."""
    options = {"strategy": "portfolio", "metric": "perplexity", "repairs": repairs}
    ghost = Loop(
        repair=Repair.from_options({"method": "ghost"}), weights=[("own", 1.0)], protect=[], seed=0
    )
    request = SearchRequest(
        tiny.model(depth=8),
        {"own": random_calibration(40, 12)},
        Selector.from_options(options),
        [2, 3],
        {"model": "m", "calibration": "own", "selector": "s"},
        loops=dict.fromkeys(repairs, ghost),
    )
    _, rows = judging.search_plans(request)

    measured = {(row["stage"], *row["units"]) for row in rows if row["stage"] in ("1", "2", "3")}
    n_done, _, n_expected, unit = workload.done.counted.split()
    assert unit == "sets"
    assert int(n_done) == min(8 + len(measured), int(n_expected))
    assert 0.7 * int(n_expected) < 8 + len(measured) < 1.4 * int(n_expected)

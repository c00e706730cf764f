"""Values of units in games whose answers are known, and of layers against cut models evaluated one by one."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.config.metrics import METRICS, Presence, Shapley
from lamina.data.calibrations import Calibration, Sample, chance_accuracy
from lamina.engine import coalitions
from lamina.models.units import all_units
from lamina.relevance.columns import Context, from_table
from lamina.relevance.metrics import presence, shapley
from lamina.relevance.score import relevance
from lamina.selection.evidence import read_step
from lamina.store import parquet as store
from tests.unit import tiny
from tests.unit.test_sweep import naive, random_samples

N = 8
Game = Callable[[frozenset[int]], np.ndarray]


def table_game(seed: int, samples: int = 3) -> Game:
    """Any value for every set: nothing about it is additive."""
    values = np.random.default_rng(seed).normal(size=(2**N, samples))
    return lambda lacking: values[sum(1 << unit for unit in lacking)]


def additive_game(weights: np.ndarray) -> Game:
    return lambda lacking: np.array([weights.sum() - sum(weights[unit] for unit in lacking)])


def asked(game: Game) -> Callable[[Sequence[frozenset[int]]], np.ndarray]:
    return lambda sets: np.array([game(lacking) for lacking in sets])


def semi_value(game: Game, unit: int, n: int, depth: int) -> np.ndarray:
    """Mean over sizes j < depth of the mean over sets of j other units that are gone; Shapley's for depth = n."""
    others = [other for other in range(n) if other != unit]
    means = [
        np.mean([game(frozenset(gone)) - game(frozenset({*gone, unit})) for gone in combinations(others, size)], axis=0)
        for size in range(depth)
    ]
    return np.mean(means, axis=0)


@pytest.mark.parametrize(("n", "depth"), [(N, N), (6, 3), (5, 3), (7, 1)])
def test_all_orders_give_what_enumeration_of_all_sets_gives(n: int, depth: int) -> None:
    """Over every permutation; five units in chains of three leave two, whose chain goes on from the start."""
    game = table_game(0)
    every = list(permutations(range(n)))
    sums, counts = shapley.marginals(asked(game), every, depth, None)
    found = sums.sum(axis=0) / counts.sum(axis=0)[:, None]
    assert found == pytest.approx(np.array([semi_value(game, unit, n, depth) for unit in range(n)]), abs=1e-9)


def test_shapley_by_its_weights_on_sets() -> None:
    """The formula itself, Σ |S|! (n - |S| - 1)! / n! [v(S + u) - v(S)], is the semi-value of full depth."""
    game, total = table_game(1), np.zeros(3)
    for size in range(N):
        for kept in combinations(range(1, N), size):
            lacking = frozenset(range(1, N)) - set(kept)
            weight = math.factorial(size) * math.factorial(N - size - 1) / math.factorial(N)
            total += weight * (game(lacking) - game(lacking | {0}))
    assert total == pytest.approx(semi_value(game, 0, N, N), abs=1e-9)


@pytest.mark.parametrize("floor", [None, -0.2])
def test_every_permutation_adds_up_to_what_the_whole_is_worth(floor: float | None) -> None:
    game = table_game(2)
    sums, counts = shapley.marginals(asked(game), shapley.orders(N, 40, 3), N, floor)
    assert np.abs(sums.sum(axis=1) - (game(frozenset()) - game(frozenset(range(N))))).max() < 1e-9
    assert (counts == 1).all()


def test_what_is_at_the_floor_is_worth_nothing_and_not_asked_further() -> None:
    """Unit 5 carries all: behind its removal nothing is evaluated, and no other unit gets a share."""
    seen: list[frozenset[int]] = []

    def value(sets: Sequence[frozenset[int]]) -> np.ndarray:
        seen.extend(sets)
        return np.array([[0.0 if 5 in lacking else 1.0] for lacking in sets])

    sums, _ = shapley.marginals(value, shapley.orders(N, 20, 0), N, 0.0)
    assert (sums[:, 5] == 1).all() and (np.delete(sums, 5, axis=1) == 0).all()
    behind = [lacking for lacking in seen if 5 in lacking and len(lacking) < N]
    assert all(lacking - {5} in seen for lacking in behind) and len(behind) <= 20


@pytest.mark.parametrize("local", [None, 3])
def test_additive_games_get_their_weights_without_error(local: int | None) -> None:
    weights = np.random.default_rng(4).normal(size=N)
    found, error = shapley.estimate(N, asked(additive_game(weights)), None, Shapley(permutations=4, local=local), 0)
    assert found[:, 0] == pytest.approx(weights, abs=1e-9) and error == pytest.approx(np.zeros(N), abs=1e-9)


def test_reverses_reduce_the_variance_and_the_error_is_the_spread_over_repetitions() -> None:
    """A game of pairs: what a unit adds rises with its place in the order, which the reverse mirrors."""
    game = asked(lambda lacking: np.array([(N - len(lacking)) ** 2 + len(lacking & {0, 1, 2}) * 1.5]))
    draw = np.random.default_rng(5)
    alone = [np.array([draw.permutation(N) for _ in range(8)]) for _ in range(60)]
    plain = np.array([shapley.marginals(game, orders, N, None)[0].mean(axis=0)[:, 0] for orders in alone])
    paired = [shapley.estimate(N, game, None, Shapley(permutations=8), seed) for seed in range(60)]
    assert np.array([found[:, 0] for found, _ in paired]).std(axis=0).max() < plain.std(axis=0).min() / 10
    rough = asked(table_game(6))
    drawn = [shapley.estimate(N, rough, None, Shapley(permutations=8, local=3), seed) for seed in range(150)]
    spread = np.array([found.mean(axis=1) for found, _ in drawn]).std(axis=0)
    errors = np.sqrt(np.mean([error**2 for _, error in drawn], axis=0))
    assert errors == pytest.approx(spread, rel=0.35)


def test_presence_over_all_sets_is_the_difference_of_means() -> None:
    game = table_game(7)
    found, error = presence.estimate(N, asked(game), None, Presence(kept=0.75, draws=28), 0)
    sets = [frozenset(lacking) for lacking in combinations(range(N), 2)]
    for unit in range(N):
        kept = [game(lacking) for lacking in sets if unit not in lacking]
        dropped = [game(lacking) for lacking in sets if unit in lacking]
        assert found[unit] == pytest.approx(np.mean(kept, axis=0) - np.mean(dropped, axis=0), abs=1e-12)
    assert not error.any()
    weights = np.arange(N) * 1.0
    found, _ = presence.estimate(N, asked(additive_game(weights)), None, Presence(kept=0.75, draws=28), 0)
    assert found[:, 0] == pytest.approx(weights - (weights.sum() - weights) / (N - 1), abs=1e-9)


def test_presence_of_drawn_sets_errs_as_it_says() -> None:
    game = table_game(8)
    exact, _ = presence.estimate(N, asked(game), None, Presence(kept=0.5, draws=70), 0)
    drawn = [presence.estimate(N, asked(game), None, Presence(kept=0.5, draws=30), seed) for seed in range(150)]
    means = np.array([found.mean(axis=1) for found, _ in drawn])
    errors = np.sqrt(np.mean([error**2 for _, error in drawn], axis=0))
    assert means.mean(axis=0) == pytest.approx(exact.mean(axis=1), abs=0.1)
    assert errors == pytest.approx(means.std(axis=0), rel=0.35)


def swept(
    model: PreTrainedModel, samples: list[Sample], units: list[str], removed: list[str], metric: str, **options: Any
) -> store.pa.Table:
    calibration = Calibration(tuple(samples), {"chance_accuracy": chance_accuracy(samples, tiny.VOCABULARY)})
    told = {"options": options, "score": "acc", "seed": 0}
    rows = coalitions.rows(model, calibration, units, removed, metric, told, 4000)
    return store.from_rows("sweeps", rows, model="m", calibration="c", selector="s", removed=len(removed))


def margins(model: PreTrainedModel, samples: list[Sample], removed: list[str]) -> np.ndarray:
    """Gold's lead in every sample, by a model whose units are really gone."""
    cut = model
    if len(removed) == len(model_layers(model)):
        cut, removed = copy.deepcopy(model), []
        del model_layers(cut)[:]
    scores, found = iter(naive(cut, samples, removed)), []
    for sample in samples:
        each = [next(scores) for _ in sample.rows]
        found.append(each.pop(sample.gold) - max(each))
    return np.array(found)


def model_layers(model: PreTrainedModel) -> torch.nn.ModuleList:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("local", [None, 2])
def test_shapley_of_layers_equals_loops_over_cut_models(family: str, local: int | None) -> None:
    """At depth 1 of a plan, layer 1 being gone: the marginals of the same orders, model by model."""
    model, samples, units = tiny.model(family, depth=4), random_samples(1, count=6), ["0", "2", "3"]
    table = swept(model, samples, units, ["1"], "shapley", value="margin", permutations=4, local=local)
    found: dict[str, list[np.ndarray]] = {unit: [] for unit in units}
    lead = cache(lambda gone: margins(model, samples, sorted(gone)))
    for order in shapley.orders(3, 4, 0).tolist():
        for start in range(0, 3, local or 3):
            gone = frozenset({"1"})
            for place in range(start, start + (local or 3)):
                before, unit = lead(gone), units[order[place % 3]]
                gone = gone | {unit}
                found[unit].append(before - lead(gone))
    values = from_table(table).values["shapley"][1:]
    assert values == pytest.approx(np.array([np.mean(found[unit], axis=0) for unit in units]), abs=1e-3)


@pytest.mark.parametrize(("family", "kind"), [("llama", "attention"), ("gpt2", "mlp")])
def test_presence_of_halves_equals_loops_over_cut_models(family: str, kind: str) -> None:
    model, samples, units = tiny.model(family), random_samples(2, count=6), all_units(5, kind)
    table = swept(model, samples, units, [], "presence", value="margin", kept=0.6)
    value = {lacking: margins(model, samples, list(lacking)) for lacking in combinations(units, 2)}
    for row, unit in enumerate(units, start=1):
        kept = np.mean([each for lacking, each in value.items() if unit not in lacking], axis=0)
        dropped = np.mean([each for lacking, each in value.items() if unit in lacking], axis=0)
        assert from_table(table).values["presence"][row] == pytest.approx(kept - dropped, abs=1e-3)


def test_a_generated_answer_is_never_a_guess() -> None:
    """Chance is next to nothing there, and a model that is never right is at chance all the same: it has no parts."""
    count = 125  # of which a difference of near equals would give more than 0
    samples = random_samples(2, count=count, kinds=("generated",))
    calibration = Calibration(tuple(samples), {"chance_accuracy": 0.0})
    told = {"options": {"draws": 8}, "score": "acc", "seed": 0}
    units = all_units(5, "layer")
    rows = coalitions.rows(tiny.model(), calibration, units, [], "presence", told, 4000)
    assert not any(row["correct"] for row in rows[:count])
    assert [row["presence"] for row in rows[count:]] == [None] * (5 * count)


@pytest.mark.parametrize("metric", ["shapley", "presence"])
def test_a_model_at_chance_is_refused_and_one_that_is_not_is_ranked(metric: str, tmp_path: Any) -> None:
    model, units = tiny.model(), all_units(5, "layer")
    samples = random_samples(3, count=40)
    table = swept(model, samples, units, [], metric)
    store.write(tmp_path / "sweep.parquet", table)
    context = Context(chance_accuracy(samples, tiny.VOCABULARY), "acc")
    [row] = [row for row in relevance(table, [metric], context, 0) if row["unit"] == "0"]
    assert row["score"] is None and "not above chance" in row["reason"]
    refused, _ = read_step(tmp_path / "sweep.parquet", metric, context, "mine")
    assert refused and "not above chance" in refused and "calibration 'mine' more samples" in refused
    # The model's own answers are the gold ones, so it is right throughout.
    best = iter(naive(model, samples, []))
    samples = [
        Sample(s.index, s.kind, int(np.argmax([next(best) for _ in s.rows])), s.rows, s.document) for s in samples
    ]
    columns = from_table(swept(model, samples, units, [], metric))
    assert (columns.values["correct"][0] == 1).all()
    rows = relevance(swept(model, samples, units, [], metric), [metric], Context(0.3, "acc"), 0)
    assert sorted(row["rank"] for row in rows) == [1, 2, 3, 4, 5] and METRICS[metric].column == metric
    assert all(row["ci_low"] < row["score"] < row["ci_high"] and row["n_samples"] == 40 for row in rows)


def test_intervals_hold_the_error_of_what_was_drawn() -> None:
    """Samples that all agree leave no spread of their own; the error of the draws is then all of the interval."""
    rows = [{"unit": "none", "sample": sample, "correct": True, "nll": 1.0, "n_tokens": 1} for sample in range(20)]
    rows += [{"unit": "3", "sample": sample, "shapley": 0.5, "shapley_error": 0.1} for sample in range(20)]
    table = store.from_rows("sweeps", rows, model="m", calibration="c", selector="s", removed=0)
    [row] = relevance(table, ["shapley"], Context(), 0)
    assert row["score"] == pytest.approx(0.5)
    assert (row["ci_low"], row["ci_high"]) == (pytest.approx(0.304, abs=0.03), pytest.approx(0.696, abs=0.03))

"""What each strategy removes, on evidence small enough to decide by eye, or against all subsets."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.models.units import all_units
from lamina.options.selectors import Selector
from lamina.selection import choosing, plans
from lamina.selection.options import CalibrationSweep
from lamina.selection.plans import Plan, PlanRequest, ScoredUnit, StepEvidence, protected_layers
from lamina.selection.strategies import block, deepest, given, iterative, one_shot, random
from lamina.store import parquet
from tests.selection.examples import KEYS

DEPTH = 6


def evidence_of(*scored_units: tuple[str, float], **accuracies: Any) -> StepEvidence:
    """Evidence of units with these scores, least relevant first."""
    ranked = [ScoredUnit(unit, score) for unit, score in scored_units]
    return StepEvidence(ranked, **accuracies)


EMPTY_PLAN = Plan("m", "c", "s", 0, "accuracy", "iterative", "layer")
NO_EVIDENCE = StepEvidence()
RANKED = evidence_of(
    ("4", 0.0), ("1", 0.1), ("3", 0.2), ("0", 0.9), current_accuracy=0.8, accuracies={"4": 0.8}
)
DISTANCES = StepEvidence(
    distances={(0, 2): 0.3, (1, 2): 0.1, (2, 2): 0.2, (3, 2): 0.1, (4, 2): 0.5}
)


def request_plan(
    n_removed: int, protect: tuple[int, ...] = (), kind: str = "layer", seed: int = 0
) -> PlanRequest:
    return PlanRequest(n_removed, kind, DEPTH, protected_layers(protect, DEPTH), seed)


@pytest.mark.parametrize(
    ("strategy", "plan_request", "evidence", "units"),
    [
        (iterative, request_plan(1, protect=(4,)), RANKED, ["1"]),
        (one_shot, request_plan(3), RANKED, ["4", "1", "3"]),
        (one_shot, request_plan(2, protect=(4, 1)), RANKED, ["3", "0"]),
        (block, request_plan(2), DISTANCES, ["3", "4"]),  # of equal runs the deeper one
        (block, request_plan(2, protect=(4,)), DISTANCES, ["1", "2"]),
        (deepest, request_plan(3), NO_EVIDENCE, ["4", "3", "2"]),  # the last layer stays
        (deepest, request_plan(2, protect=(4,)), NO_EVIDENCE, ["3", "2"]),
        (deepest, request_plan(2, kind="mlp"), NO_EVIDENCE, ["4.mlp", "3.mlp"]),
    ],
)
def test_units_are_removed_in_the_order_of_the_evidence_but_none_that_is_protected(
    strategy: Any, plan_request: PlanRequest, evidence: StepEvidence, units: list[str]
) -> None:
    plan = strategy.choose(plan_request, evidence, EMPTY_PLAN)

    assert plan.units == units
    assert plan.removed == len(units)


def test_given_layers_go_in_their_order_whole_or_in_part() -> None:
    layers = (4, -1, 0)
    whole = replace(request_plan(2), given_layers=layers)
    attentions = replace(request_plan(3, kind="attention"), given_layers=layers)
    both = replace(request_plan(1, kind="both"), given_layers=layers, attention_share=0.25)

    assert given.choose(whole, NO_EVIDENCE, EMPTY_PLAN).units == ["4", str(DEPTH - 1)]
    assert given.choose(attentions, NO_EVIDENCE, EMPTY_PLAN).units == [
        "4.attention",
        f"{DEPTH - 1}.attention",
        "0.attention",
    ]
    assert given.choose(both, NO_EVIDENCE, EMPTY_PLAN).units == ["4.attention", "4.mlp"]


@pytest.mark.parametrize(
    ("size", "units"),
    [
        (-2, ["1-2x2"]),
        (-1, ["4", "1-2x2"]),
        (0, ["4", "0", "1-2x2"]),
        (1, ["4", "0", "5", "1-2x2"]),
    ],
)
def test_given_edits_are_made_at_every_size_and_paid_by_layers(size: int, units: list[str]) -> None:
    request = replace(request_plan(size), given_layers=(4, 0, 5), given_edits=("1-2x2",))

    plan = given.choose(request, NO_EVIDENCE, EMPTY_PLAN)

    assert plan.units == units
    assert plan.removed == request.prices.size_of(units) == size


def test_iterative_adds_the_least_relevant_unit_to_the_previous_plan() -> None:
    next_evidence = evidence_of(
        ("1", 0.05), ("3", 0.2), current_accuracy=0.8, accuracies={"1": 0.75}
    )

    first_plan = iterative.choose(request_plan(1), RANKED, EMPTY_PLAN)
    second_plan = iterative.choose(request_plan(2), next_evidence, first_plan)

    assert second_plan.units == ["4", "1"]
    assert second_plan.scores == [0.0, 0.05]
    assert second_plan.accuracy_before == [0.8, 0.8]
    assert second_plan.accuracy_after == [0.8, 0.75]


def test_a_pass_without_removals_learns_the_accuracy_one_step_later() -> None:
    first_evidence = StepEvidence(RANKED.ranked, current_accuracy=0.8)
    next_evidence = evidence_of(("1", 0.05), current_accuracy=0.7)

    first_plan = iterative.choose(request_plan(1), first_evidence, EMPTY_PLAN)
    second_plan = iterative.choose(request_plan(2), next_evidence, first_plan)

    assert first_plan.accuracy_after == [None]
    assert second_plan.accuracy_after == [0.7, None]


def draw_units(n_removed: int, seed: int = 0, protect: tuple[int, ...] = ()) -> list[str]:
    """What strategy `random` removes."""
    request = request_plan(n_removed, protect, seed=seed)
    plan: Plan = random.choose(request, NO_EVIDENCE, EMPTY_PLAN)
    return plan.units


def test_random_plans_of_one_seed_are_nested() -> None:
    assert draw_units(4)[:2] == draw_units(2)


def test_random_plans_differ_by_seed() -> None:
    plans_by_seed = {tuple(draw_units(4, seed=seed)) for seed in range(5)}

    assert len(plans_by_seed) > 1


def test_random_scores_of_a_single_ranking_differ_by_seed() -> None:
    rows = [{"unit": str(layer), "sample": 0, "magnitude": 1.0} for layer in range(DEPTH)]
    sweep = parquet.from_rows("sweeps", rows, **KEYS, removed=0)
    units_by_seed: set[tuple[str, ...]] = set()
    for seed in range(8):
        selector = Selector.from_options({"strategy": "one_shot", "metric": "random", "seed": seed})
        sweeps = {"c": CalibrationSweep(sweep, 0.25, "acc")}
        _, step = choosing.collect_evidence(selector, sweeps)
        plan = choosing.choose_plan(selector, {**KEYS, "removed": 2}, DEPTH, step)
        units_by_seed.add(tuple(plan.units))
    assert len(units_by_seed) > 1


def test_random_plans_remove_no_protected_layer() -> None:
    assert set(draw_units(4, protect=(0, -1))) == {"1", "2", "3", "4"}


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = one_shot.choose(request_plan(2), RANKED, EMPTY_PLAN)

    plans.write_plan(tmp_path / "plan.json", plan)

    assert plans.read_plan(tmp_path / "plan.json") == plan


def price_of(units: Iterable[str]) -> float:
    """What sub-layers count in layers, attention three tenths and the MLP seven."""
    prices = {"attention": 0.3, "mlp": 0.7}
    return sum(prices[unit.split(".")[1]] for unit in units)


@pytest.mark.parametrize("removed_before", [[], ["0.mlp"]])
@pytest.mark.parametrize("seed", range(3))
def test_the_lowest_sublayers_of_a_price_are_those_of_least_summed_score(
    seed: int, removed_before: list[str]
) -> None:
    """Against all subsets of the ten sub-layers of five layers; the last layer is protected."""
    units = all_units(5, "both")
    scores = dict(zip(units, np.random.default_rng(seed).uniform(0, 1, 10).tolist(), strict=True))
    ranked = [ScoredUnit(unit, scores[unit]) for unit in sorted(units, key=scores.__getitem__)]
    removable = [unit for unit in units if unit not in removed_before and unit[0] != "4"]
    for size in (1, 2, 3):
        request = PlanRequest(size, "both", 5, frozenset({4}), 0, attention_share=0.3)

        lowest = request.select_lowest_units(ranked, removed_before)

        least_sum = np.inf
        for subset in chain.from_iterable(combinations(removable, n) for n in range(1, 9)):
            if price_of([*subset, *removed_before]) > size - 1e-6:
                least_sum = min(least_sum, sum(scores[unit] for unit in subset))
        assert sum(scores[entry.unit] for entry in lowest) == pytest.approx(least_sum)
        new_units = [entry.unit for entry in lowest]
        assert price_of([*removed_before, *new_units]) > size - 1e-6


def test_an_iterative_step_of_sublayers_makes_up_for_one_layer_more() -> None:
    """Attention counts .4 of a layer and the MLP .6."""
    options = Selector.from_options({"metric": "perplexity", "units": "both"})
    first_ranked = [
        ("1.mlp", 0.1),
        ("3.attention", 0.2),
        ("2.mlp", 0.3),
        ("0.mlp", 0.5),
        ("0.attention", 0.6),
    ]
    second_ranked = first_ranked[2:]

    first_plan = choosing.choose_plan(
        options,
        KEYS | {"removed": 1},
        4,
        evidence_of(*first_ranked, current_accuracy=0.9),
        attention_share=0.4,
    )
    second_plan = choosing.choose_plan(
        options,
        KEYS | {"removed": 2},
        4,
        evidence_of(*second_ranked, current_accuracy=0.8),
        first_plan,
        attention_share=0.4,
    )

    assert first_plan.units == ["1.mlp", "3.attention"]
    assert first_plan.accuracy_after == [None, None]
    assert second_plan.units == ["1.mlp", "3.attention", "2.mlp", "0.mlp"]
    assert second_plan.accuracy_after == [None, 0.8, None, None]
    assert second_plan.kind == "both"

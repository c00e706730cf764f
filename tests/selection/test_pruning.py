"""What each strategy removes, on evidence small enough to decide by eye."""

from collections.abc import Iterable
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.models.units import all_units
from lamina.options.selectors import Selector
from lamina.selection import choosing, plans
from lamina.selection.plans import Plan, PlanRequest, ScoredUnit, StepEvidence, protected_layers
from lamina.selection.strategies import block, deepest, iterative, one_shot, random


def evidence(*scored: tuple[str, float | None], **more: Any) -> StepEvidence:
    """Evidence of units with these scores, least relevant first."""
    return StepEvidence([ScoredUnit(unit, score) for unit, score in scored], **more)


EMPTY = Plan("m", "c", "s", 0, "accuracy", "iterative", "layer")
RANKED = evidence(
    ("4", 0.0), ("1", 0.1), ("3", 0.2), ("0", 0.9), current_accuracy=0.8, accuracies={"4": 0.8}
)
ANGLES = StepEvidence(distances={(0, 2): 0.3, (1, 2): 0.1, (2, 2): 0.2, (3, 2): 0.1, (4, 2): 0.5})


def request(
    removed: int, protect: tuple[int, ...] = (), kind: str = "layer", seed: int = 0
) -> PlanRequest:
    return PlanRequest(removed, kind, 6, protected_layers(protect, 6), seed)


@pytest.mark.parametrize(
    ("strategy", "asked", "step", "units"),
    [
        (iterative, request(1, (4,)), RANKED, ["1"]),
        (one_shot, request(3), RANKED, ["4", "1", "3"]),
        (one_shot, request(2, (4, 1)), RANKED, ["3", "0"]),
        (block, request(2), ANGLES, ["3", "4"]),  # of equal runs the deeper one
        (block, request(2, (4,)), ANGLES, ["1", "2"]),
        (deepest, request(3), StepEvidence(), ["4", "3", "2"]),  # the last layer stays
        (deepest, request(2, (4,)), StepEvidence(), ["3", "2"]),
        (deepest, request(2, kind="mlp"), StepEvidence(), ["4.mlp", "3.mlp"]),
    ],
)
def test_what_goes_is_what_the_evidence_says_but_no_protected_layer(
    strategy: Any, asked: PlanRequest, step: StepEvidence, units: list[str]
) -> None:
    plan = strategy.choose(asked, step, EMPTY)
    assert plan.units == units and plan.removed == len(units)


def test_iterative_adds_the_least_relevant_unit_to_the_plan_before() -> None:
    first = iterative.choose(request(1), RANKED, EMPTY)
    second = iterative.choose(
        request(2),
        evidence(("1", 0.05), ("3", 0.2), current_accuracy=0.8, accuracies={"1": 0.75}),
        first,
    )
    assert second.units == ["4", "1"] and second.scores == [0.0, 0.05]
    assert second.accuracy_before == [0.8, 0.8] and second.accuracy_after == [0.8, 0.75]


def test_a_pass_without_removals_learns_the_accuracy_one_step_later() -> None:
    first = iterative.choose(request(1), StepEvidence(RANKED.ranked, 0.8), EMPTY)
    assert first.accuracy_after == [None]
    second = iterative.choose(request(2), evidence(("1", 0.05), current_accuracy=0.7), first)
    assert second.accuracy_after == [0.7, None]


def test_random_plans_of_one_seed_are_nested_and_of_two_seeds_differ() -> None:
    small, large = (random.choose(request(n), StepEvidence(), EMPTY).units for n in (2, 4))
    assert large[:2] == small and not {"0", "5"} & set(
        random.choose(request(4, (0, -1)), StepEvidence(), EMPTY).units
    )
    assert any(
        random.choose(request(4, seed=seed), StepEvidence(), EMPTY).units != large
        for seed in range(1, 5)
    )


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = one_shot.choose(request(2), RANKED, EMPTY)
    plans.write_plan(tmp_path / "plan.json", plan)
    assert plans.read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("seed", range(6))
def test_halves_of_both_kinds_go_that_lose_least_and_have_the_parameters_of_so_many_layers(
    seed: int,
) -> None:
    """Against all subsets of the ten halves of five layers; the MLP has seven tenths of a layer."""
    draw = np.random.default_rng(seed)
    scores = {
        unit: float(score)
        for unit, score in zip(all_units(5, "both"), draw.uniform(0, 1, 10), strict=True)
    }
    ranked = evidence(*sorted(scores.items(), key=lambda entry: entry[1])).ranked
    price = {"attention": 0.3, "mlp": 0.7}
    gone = ["0.mlp"] if seed % 2 else []
    free = [unit for unit in scores if unit not in gone and not unit.startswith("4.")]

    def priced(units: Iterable[str]) -> float:
        return sum(price[unit.split(".")[1]] for unit in units)

    for size in (1, 2, 3):
        request = PlanRequest(size, "both", 5, frozenset({4}), 0, attention_share=0.3)
        found = request.select_lowest_units(ranked, gone)
        every = chain.from_iterable(combinations(free, count) for count in range(1, 9))
        enough = [
            sum(scores[unit] for unit in some)
            for some in every
            if priced([*some, *gone]) > size - 1e-6
        ]
        assert sum(score for _, score in found) == pytest.approx(min(enough))
        assert priced([*gone, *(unit for unit, _ in found)]) > size - 1e-6


def test_an_iterative_step_of_both_halves_makes_up_for_one_layer_more() -> None:
    options = Selector.from_options({"metric": "perplexity", "units": "both"})
    keys = {"model": "m", "calibration": "c", "selector": "s"}
    ranked = [
        ("1.mlp", 0.1),
        ("3.attention", 0.2),
        ("2.mlp", 0.3),
        ("0.mlp", 0.5),
        ("0.attention", 0.6),
    ]
    first = choosing.choose_plan(
        options,
        keys | {"removed": 1},
        4,
        evidence(*ranked, current_accuracy=0.9),
        attention_share=0.4,
    )
    assert (first.units, first.accuracy_after) == (["1.mlp", "3.attention"], [None, None])
    rest = [entry for entry in ranked if entry[0] not in first.units]
    second = choosing.choose_plan(
        options,
        keys | {"removed": 2},
        4,
        evidence(*rest, current_accuracy=0.8),
        first,
        attention_share=0.4,
    )
    assert second.units == [*first.units, "2.mlp", "0.mlp"]
    assert second.accuracy_after == [None, 0.8, None, None] and second.kind == "both"

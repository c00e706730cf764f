"""What each strategy removes, on evidence small enough to decide by eye."""

from lamina.selection import plans
from lamina.selection.plans import Plan, Request, Step, protected_layers
from lamina.selection.strategies import block, deepest, iterative, one_shot, random

EMPTY = Plan("m", "c", "s", 0, "accuracy", "iterative", "layer")


def request(removed: int, protect: tuple[int, ...] = (), kind: str = "layer", seed: int = 0) -> Request:
    return Request(removed, kind, 6, protected_layers(protect, 6), seed)


RANKED = [("4", 0.0), ("1", 0.1), ("3", 0.2), ("0", 0.9)]


def test_iterative_adds_the_least_relevant_unit_to_the_plan_before() -> None:
    first = iterative.choose(request(1), Step(RANKED, 0.8, {"4": 0.8}), EMPTY)
    second = iterative.choose(request(2), Step([("1", 0.05), ("3", 0.2)], 0.8, {"1": 0.75}), first)
    assert second.units == ["4", "1"] and second.scores == [0.0, 0.05]
    assert second.accuracy_before == [0.8, 0.8] and second.accuracy_after == [0.8, 0.75]
    assert second.removed == 2


def test_a_pass_without_removals_learns_the_accuracy_one_step_later() -> None:
    first = iterative.choose(request(1), Step(RANKED, 0.8), EMPTY)
    assert first.accuracy_after == [None]
    second = iterative.choose(request(2), Step([("1", 0.05)], 0.7), first)
    assert second.accuracy_after == [0.7, None]


def test_protected_layers_are_passed_over_by_every_strategy() -> None:
    assert iterative.choose(request(1, (4,)), Step(RANKED, 0.8), EMPTY).units == ["1"]
    assert one_shot.choose(request(2, (4, 1)), Step(RANKED, 0.8), EMPTY).units == ["3", "0"]
    assert deepest.choose(request(2, (4,)), Step(), EMPTY).units == ["3", "2"]
    assert not {"0", "5"} & set(random.choose(request(4, (0, -1)), Step(), EMPTY).units)
    angles = {(start, 2): 0.1 for start in range(5)}
    assert block.choose(request(2, (4,)), Step(angles=angles), EMPTY).units == ["2", "3"]


def test_one_shot_takes_the_lowest_of_one_ranking() -> None:
    assert one_shot.choose(request(3), Step(RANKED, 0.8), EMPTY).units == ["4", "1", "3"]


def test_block_takes_the_run_with_the_smallest_angle_and_the_deeper_of_equals() -> None:
    angles = {(0, 2): 0.3, (1, 2): 0.1, (2, 2): 0.2, (3, 2): 0.1, (4, 2): 0.5}
    plan = block.choose(request(2), Step(angles=angles), EMPTY)
    assert plan.units == ["3", "4"] and plan.scores == [0.1, 0.1]


def test_deepest_keeps_the_last_layer() -> None:
    assert deepest.choose(request(3), Step(), EMPTY).units == ["4", "3", "2"]


def test_random_plans_of_one_seed_are_nested_and_of_two_seeds_differ() -> None:
    small, large = (random.choose(request(n), Step(), EMPTY).units for n in (2, 4))
    assert large[:2] == small
    assert any(random.choose(request(4, seed=seed), Step(), EMPTY).units != large for seed in range(1, 5))


def test_sub_layers_are_named_after_their_layer() -> None:
    assert deepest.choose(request(2, kind="mlp"), Step(), EMPTY).units == ["4.mlp", "3.mlp"]


def test_a_plan_survives_its_file(tmp_path) -> None:
    plan = one_shot.choose(request(2), Step(RANKED, 0.8, {"4": 0.8}), EMPTY)
    plans.write(tmp_path / "plan.json", plan)
    assert plans.read(tmp_path / "plan.json") == plan

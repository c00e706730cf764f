"""A run that took longer than `--minutes` says by how much, and whether the machine was busy."""

from lamina_workflow.cost.overtime import describe_overtime


def test_a_run_over_its_time_says_by_how_much() -> None:
    (over,) = describe_overtime(5, 480.0, load=0.0)

    assert "took 8 min, 3 min more than --minutes 5" in over


def test_a_busy_machine_is_named() -> None:
    lines = describe_overtime(5, 480.0, load=1000.0)

    assert "1000.0 processes shared" in lines[-1]
    assert len(lines) == 2


def test_nothing_is_said_of_a_run_in_its_time() -> None:
    assert describe_overtime(5, 299.0, load=1000.0) == []

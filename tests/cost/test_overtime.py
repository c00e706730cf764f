"""A run that took longer than `--minutes` says by how much, and for what."""

from lamina_workflow.cost.overtime import describe_overtime, sum_by_stage

JOBS = [
    {"rule": "search_plans", "seconds": 300.0},
    {"rule": "benchmark_task", "seconds": 20.0},
    {"rule": "benchmark_efficiency", "seconds": 200.0},
    {"rule": "benchmark_efficiency", "seconds": None},
    {"rule": "render_report", "seconds": 9.0},
]
FORECAST = {"search": 310.0, "benchmark": 40.0, "repair": 0.0, "heal": 0.0}


def test_seconds_of_jobs_are_those_of_their_stage() -> None:
    taken = sum_by_stage(JOBS)

    assert taken["search"] == 300
    assert taken["benchmark"] == 220
    assert sum(taken.values()) == 520


def test_the_stage_that_took_longer_than_forecast_is_named() -> None:
    over, cause = describe_overtime(5, 480.0, FORECAST, sum_by_stage(JOBS), load=0.0)

    assert "took 8 min, 3 min more than --minutes 5" in over
    assert cause.endswith(
        "For testing and timing variants, 40 s were forecast, and it took 3.67 min."
    )


def test_a_busy_machine_is_named() -> None:
    lines = describe_overtime(5, 480.0, {}, {}, load=1000.0)

    assert "1000.0 processes shared" in lines[-1]
    assert len(lines) == 2


def test_nothing_is_said_of_a_run_in_its_time() -> None:
    assert describe_overtime(5, 299.0, FORECAST, sum_by_stage(JOBS), load=1000.0) == []

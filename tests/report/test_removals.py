"""What plans say of the accuracy around each removal, and from how many samples."""

import pytest

from lamina.report import database
from lamina.report.queries import rows
from tests.given.plausible_tables import VIEWS, write_tables

PLAN = dict(model="m", calibration="c", selector="s", removed=2)
CALIBRATIONS = [dict(model="m", calibration="c", kind="choices", n_samples=500, source="t")]


def run(tmp_path, plans, **tables):
    return database.connect(VIEWS, write_tables(tmp_path, plans=plans, calibrations=CALIBRATIONS, **tables))


def swept(unit: str, removed: int, n: int, selector: str = "s", metric: str = "accuracy") -> dict:
    told = dict(unit=unit, layer=int(unit), component="layer", score=0.1, n_samples=n, metric=metric)
    return dict(model="m", calibration="c", selector=selector, removed=removed) | told


def test_what_is_left_at_the_end_is_unknown_where_the_last_removal_was_not_measured(tmp_path):
    """A pass without removals learns what a removal did in the next step; behind the last there is none."""
    plans = [
        PLAN | dict(unit="4", position=1, accuracy_before=0.98, accuracy_after=0.84),
        PLAN | dict(unit="2", position=2, accuracy_before=0.84, accuracy_after=None),
    ]
    (found,) = rows(run(tmp_path, plans), "FROM removal_order")
    assert (found["accuracy_before"], found["accuracy_after"]) == (0.98, None)


def test_accuracies_have_the_error_of_the_samples_that_were_seen(tmp_path):
    """In a race the winner saw 96 and then 150 of 500 samples, and the model before it all that the last loser saw."""
    plans = [
        PLAN | dict(unit="4", position=1, accuracy_before=0.9, accuracy_after=0.8),
        PLAN | dict(unit="2", position=2, accuracy_before=0.85, accuracy_after=0.7),
    ]
    relevance = [swept("4", 0, 96), swept("2", 0, 120), swept("2", 1, 150), swept("3", 1, 150)]
    relevance += [
        swept("4", 0, 500, "base"),
        swept("4", 0, 500, "base", "cosine"),
        swept("2", 1, 0, metric="magnitude"),
    ]
    first, second = rows(run(tmp_path, plans, relevance=relevance), "FROM removals ORDER BY position")
    assert [(row["n_before"], row["n_after"]) for row in (first, second)] == [(120, 96), (150, 150)]
    assert first["after_stderr"] == pytest.approx((0.8 * 0.2 / 96) ** 0.5)
    assert second["before_stderr"] == pytest.approx((0.85 * 0.15 / 150) ** 0.5)


def test_a_search_counts_what_it_did_not_hold_back(tmp_path):
    plans = [
        PLAN | dict(unit="2", position=1, accuracy_before=0.9, accuracy_after=None),
        PLAN | dict(unit="4", position=2, accuracy_before=None, accuracy_after=0.7),
    ]
    ended = dict(model="m", calibration="c", selector="s", strategy="evolutionary", removed=2, units=["2", "4"])
    searches = [ended | dict(stage="winner", n_samples=375), ended | dict(stage="held back", n_samples=125)]
    first, last = rows(run(tmp_path, plans, searches=searches), "FROM removals ORDER BY position")
    assert (first["n_before"], first["n_after"], last["n_before"], last["n_after"]) == (375, None, None, 375)
    assert last["after_stderr"] == pytest.approx((0.7 * 0.3 / 375) ** 0.5)

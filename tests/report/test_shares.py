"""What is kept, what is general text and what is known of their errors: one definition each, made again with numpy."""

import numpy as np
import pytest

from lamina_workflow.report import database, ending
from lamina_workflow.report.answers import query_rows as answered
from lamina_workflow.report.answers import recommendations
from tests.given.planted_tables import (
    BASE_KEY,
    connect_planted_tables,
    extra_share_stderr,
    share_stderr,
    variant_key,
)
from tests.given.plausible_tables import VIEWS, write_tables

CHANCE = 0.25


def answers(rng: np.random.Generator, share: float, n: int = 400) -> np.ndarray:
    return (rng.random(n) < share).astype(float)


def stderr(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def test_unknown_errors_stay_unknown(tmp_path):
    """A task that gives no error, and a perplexity that overflows: nobody is told that they are certain."""
    row = dict(task="t", metric="acc", n_samples=400, higher_is_better=True, stderr=None)
    text = dict(task="text", metric="perplexity", n_samples=80, higher_is_better=False)
    rows = [BASE_KEY | row | dict(value=0.9), variant_key("c") | row | dict(value=0.85)]
    rows += [
        BASE_KEY | text | dict(value=4.0, stderr=0.1),
        variant_key("c") | text | dict(value=float("inf"), stderr=0.1),
    ]
    rows.append(variant_key("c", repair="ghost") | row | dict(value=0.95))
    calibrations = [
        dict(model="m", calibration="c", kind="choices", source="t", chance_accuracy=CHANCE)
    ]
    run = database.connect_views(
        VIEWS, write_tables(tmp_path, benchmarks=rows, calibrations=calibrations)
    )
    found = {
        r["task"]: r for r in answered(run, "FROM scores WHERE removed = 1 AND repair = 'none'")
    }
    assert found["t"]["change_stderr"] is None and found["t"]["kept_stderr"] is None
    assert (found["text"]["kept"], found["text"]["kept_stderr"]) == (0, None)
    (gain,) = answered(run, "FROM repairs")
    assert gain["gain_stderr"] is None and gain["loss_stderr"] is None
    for query in ("what_repair_gave_back", "what_pruning_for_one_task_costs_the_others"):
        sql = (VIEWS.parent / "queries" / f"{query}.sql").read_text(encoding="utf-8")
        assert {r["certain"] for r in answered(run, sql)} == {None}
    (card,) = recommendations(run, 0.95, None)
    assert card["kept_enough"] and card["kept_stderr"] is None and card["certain"] is None
    (bare,) = answered(run, "FROM variants WHERE removed = 1 AND repair = 'none'")
    assert (bare["text_ratio"], bare["text_ratio_stderr"], bare["own_stderr"]) == (
        float("inf"),
        None,
        None,
    )


def test_tasks_at_chance_are_kept_nowhere(tmp_path):
    """One real task at 89 % and two at chance: nothing is kept of what was not there."""
    rng = np.random.default_rng(2)
    base = {
        "t": answers(rng, 0.9),
        "guess": answers(rng, CHANCE),
        "guess_too": answers(rng, CHANCE),
    }
    worse = {
        "t": base["t"] * answers(rng, 0.89),
        "guess": answers(rng, 0.27),
        "guess_too": answers(rng, 0.26),
    }
    calibrations = [dict(calibration=task, source=task) for task in base]
    run = connect_planted_tables(
        tmp_path, base, [(variant_key(task), worse) for task in base], calibrations
    )
    kept = worse["t"].mean() / base["t"].mean()
    for row in answered(run, "FROM variants WHERE removed = 1"):
        assert (row["mean_kept"], row["n_tasks"], row["n_at_chance"]) == (pytest.approx(kept), 1, 2)
        assert row["own_at_chance"] is (row["calibration"] != "t")
        assert row["own_kept"] == (pytest.approx(kept) if row["calibration"] == "t" else None)
    cards = {(row["question"], row["name"]): row for row in recommendations(run, 0.95, None)}
    assert set(cards) == {("task", name) for name in base}  # of one task there is no mean
    assert [cards["task", name]["at_chance"] for name in base] == [False, True, True]
    assert not any(card["kept_enough"] for card in cards.values())


def test_draws_of_a_calibration_share_their_test_documents(tmp_path):
    """Accuracy and its error over 400 documents, not 1,200: numpy over the mean of each document."""
    rng = np.random.default_rng(3)
    base = {"t": answers(rng, 0.9), "u": answers(rng, 0.8), "text": rng.gamma(4, 0.4, 60)}
    draws, hard = ("c", "c.2", "c.3"), rng.random(400)
    found = {name: {"t": (hard + rng.normal(0, 0.05, 400) < 0.7).astype(float)} for name in draws}
    found["other"] = {"u": base["u"] * answers(rng, 0.9)}
    variants = [
        (variant_key(name), task | {"text": base["text"] + 0.1}) for name, task in found.items()
    ]
    calibrations = [dict(calibration=name, source="t", replicate_of="c") for name in draws]
    calibrations.append(dict(calibration="other", source="u"))
    own = np.mean([found[name]["t"] for name in draws], axis=0)
    want = np.sqrt((3 * stderr(own)) ** 2 + stderr(found["other"]["u"]) ** 2) / 4
    kept = [found[name]["t"].mean() / base["t"].mean() for name in draws]
    parts = [
        (found[n]["t"] - k * base["t"]) / base["t"].mean() for n, k in zip(draws, kept, strict=True)
    ]
    last = found["other"]["u"].mean() / base["u"].mean()
    together = np.cov(parts) / 400 + (1 + np.outer(kept, kept)) / (402 * base["t"].mean()) ** 2
    np.fill_diagonal(together, [share_stderr(found[name]["t"], base["t"]) ** 2 for name in draws])
    want_kept = np.sqrt(together.sum() + share_stderr(found["other"]["u"], base["u"]) ** 2) / 4
    lucks = [extra_share_stderr(found[name]["t"], base["t"]) for name in draws]
    want_kept += np.mean([*lucks, extra_share_stderr(found["other"]["u"], base["u"])])
    naive = np.sqrt(3 * stderr(found["c"]["t"]) ** 2 + stderr(found["other"]["u"]) ** 2) / 4
    for known in (True, False):
        run = connect_planted_tables(tmp_path / str(known), base, variants, calibrations, known)
        (row,) = answered(run, "FROM frontier")
        assert (row["n_calibrations"], row["n_samples"]) == (4, 800)
        (recipe,) = [r for r in recommendations(run, 0.5, None) if r["question"] == "recipe"]
        assert (recipe["n_tasks"], recipe["n_samples"]) == (4, 800)
        assert recipe["kept"] == pytest.approx(np.mean([*kept, last]))
        if known:
            assert (row["accuracy_stderr"], recipe["kept_stderr"]) == pytest.approx(
                (want, want_kept)
            )
            assert naive < 0.75 * want
        else:  # of documents that nobody knows, the most that it can be
            most = (
                np.hypot(
                    sum(stderr(found[name]["t"]) for name in draws), stderr(found["other"]["u"])
                )
                / 4
            )
            assert (
                row["accuracy_stderr"] == pytest.approx(most) and recipe["kept_stderr"] > want_kept
            )


def test_a_share_of_a_weak_base_is_said_to_have_too_few_documents(tmp_path):
    """Half of 60 questions right at a chance of a quarter: 3.9 standard errors above it."""
    base = {"t": np.repeat([1.0, 0.0], 30)}
    plan = dict(model="m", calibration="c", selector="s", removed=1, unit="3", position=1)
    run = connect_planted_tables(
        tmp_path / "tables",
        base,
        [(variant_key("c"), base)],
        [dict(calibration="c", source="t")],
        plans=[plan],
    )
    (score,) = answered(run, "FROM scores WHERE removed = 1")
    assert (score["kept"], score["kept_stderr"], score["kept_reason"]) == (1, None, "too few")
    (card,) = recommendations(run, 0.95, None)
    assert (card["kept_reason"], card["certain"]) == ("too few", None)
    best = ending.summarise_run(tmp_path, VIEWS)[0]
    assert "keeps 100.0 % of t (60 documents, too few for an interval)" in best

"""Relevance scores, by hand: small sweeps whose answers are known."""

import pytest
from scipy.stats import beta, binomtest

from lamina.config.metrics import METRICS
from lamina.relevance import score
from lamina.relevance.columns import Context
from lamina.relevance.statistics import wilson_interval
from lamina.report import queries
from lamina.store import parquet as store
from tests.given.configurations import REPOSITORY

SAMPLES = 200


def sweep(
    accuracy: dict[str, float], nll: dict[str, float] | None = None, **columns: dict[str, float]
) -> store.pa.Table:
    """A sweep in which unit u answers the first accuracy[u] of its samples right."""
    rows = []
    for unit, share in accuracy.items():
        for sample in range(SAMPLES):
            right = sample < share * SAMPLES
            extra = {name: values[unit] for name, values in columns.items() if unit in values}
            loss = (nll or {}).get(unit, 1.0)
            answers = {"correct": right, "correct_norm": right, "nll": loss, "n_tokens": 2}
            rows.append({"unit": unit, "sample": sample} | answers | extra)
    keys = {"model": "m", "calibration": "c", "selector": "base", "removed": 0}
    return store.from_rows("sweeps", rows, **keys)


def relevance(
    table: store.pa.Table, chance: float, way: str, removed: int, seed: int
) -> list[dict]:
    return score.relevance(table, METRICS, Context(chance, way, removed), seed)


def scores(rows: list[dict], metric: str) -> dict[str, dict]:
    return {row["unit"]: row for row in rows if row["metric"] == metric}


def test_accuracy_relevance_is_the_share_of_accuracy_above_chance_that_is_lost() -> None:
    rows = relevance(
        sweep({"none": 0.75, "0": 0.25, "1": 0.5, "2": 0.8}), 0.25, "acc_norm", removed=0, seed=0
    )
    found = scores(rows, "accuracy")
    assert found["0"]["score"] == pytest.approx(1.0)
    assert found["1"]["score"] == pytest.approx(0.5)
    assert found["2"]["score"] == pytest.approx(1 - 0.55 / 0.5)
    assert [found[unit]["rank"] for unit in ("2", "1", "0")] == [1, 2, 3]
    for row in found.values():
        assert row["ci_low"] <= row["score"] <= row["ci_high"] and row["n_samples"] == SAMPLES


def test_below_chance_counts_as_chance() -> None:
    rows = relevance(sweep({"none": 0.75, "0": 0.0}), 0.25, "acc", removed=0, seed=0)
    assert scores(rows, "accuracy")["0"]["score"] == pytest.approx(1.0)


def test_a_base_model_at_chance_gives_no_score_but_a_reason() -> None:
    rows = relevance(sweep({"none": 0.26, "0": 0.2}), 0.25, "acc", removed=0, seed=0)
    row = scores(rows, "accuracy")["0"]
    assert row["score"] is None and row["rank"] is None
    assert "not above chance (0.250)" in row["reason"] and "200 samples" in row["reason"]


@pytest.mark.parametrize(
    ("accuracy", "removed", "order", "reason"),
    [
        (
            {"none": 0.75, "0": 0.5, "1": 0.5, "2": 0.5},
            0,
            "210",
            "",
        ),  # of equals the deeper one first
        (
            {"none": 0.26, "0": 0.24, "1": 0.2, "2": 0.24},
            2,
            "201",
            "raw accuracy",
        ),  # at chance: answers, then loss
    ],
)
def test_units_rank_by_what_removal_loses(
    accuracy: dict[str, float], removed: int, order: str, reason: str
) -> None:
    nll = {"none": 1.0, "0": 3.0, "1": 2.0, "2": 2.0}
    found = scores(
        relevance(sweep(accuracy, nll), 0.25, "acc", removed=removed, seed=0), "accuracy"
    )
    assert [found[unit]["rank"] for unit in order] == [1, 2, 3] and reason in (
        found["0"]["reason"] or ""
    )


def test_perplexity_relevance_is_the_rise_of_the_loss_per_token() -> None:
    rows = relevance(
        sweep({"none": 0.75, "0": 0.5}, {"none": 1.0, "0": 4.0}), 0.25, "acc", removed=0, seed=0
    )
    assert scores(rows, "perplexity")["0"]["score"] == pytest.approx(1.5)


@pytest.mark.parametrize(("way", "drop"), [("acc", 1.5), ("acc_norm", 0.5)])
def test_margin_is_the_drop_of_the_lead_as_the_accuracy_compares_it(way: str, drop: float) -> None:
    margins = {
        "gold_margin": {"none": 1.0, "0": -0.5},
        "gold_margin_norm": {"none": 0.25, "0": -0.25},
    }
    rows = relevance(sweep({"none": 0.75, "0": 0.5}, **margins), 0.25, way, removed=0, seed=0)
    assert scores(rows, "margin")["0"]["score"] == pytest.approx(drop)


@pytest.mark.parametrize("lacking", [1, 200])
def test_margin_is_refused_with_a_reason_where_samples_have_no_choices(lacking: int) -> None:
    table = sweep(
        {"none": 0.75, "0": 0.5},
        gold_margin={"none": 1.0, "0": 0.5},
        gold_margin_norm={"none": 1.0},
    ).to_pylist()
    for row in table:
        if row["sample"] < lacking:
            row |= {"correct_norm": None, "gold_margin": None, "gold_margin_norm": None}
    found = scores(
        relevance(store.from_rows("sweeps", table), 0.0, "acc", removed=0, seed=0), "margin"
    )["0"]
    assert found["score"] is None and found["rank"] is None
    assert found["reason"] == f"{lacking} of 200 samples have no choices to lead over"


@pytest.mark.parametrize(
    ("metric", "column"), [("agreement", "output_flips"), ("acceptance", "output_tv")]
)
def test_what_a_draft_would_lose_is_the_mean_over_samples(metric: str, column: str) -> None:
    table = sweep({"none": 0.75, "0": 0.5, "1": 0.5}, **{column: {"0": 0.25, "1": 0.0}})
    found = scores(relevance(table, 0.25, "acc", removed=0, seed=0), metric)
    assert found["0"]["score"] == pytest.approx(0.25) and found["1"]["rank"] == 1


def test_random_is_a_permutation_that_its_seed_decides() -> None:
    table = sweep(
        dict.fromkeys(["none", *map(str, range(9))], 0.5),
        magnitude=dict.fromkeys(map(str, range(9)), 1.0),
    )
    ranks = []
    for seed in range(20):
        found = scores(score.relevance(table, METRICS, Context(seed=seed), 0), "random")
        assert all(row["score"] == row["rank"] and row["n_samples"] == 0 for row in found.values())
        ranks.append(tuple(found[str(unit)]["rank"] for unit in range(9)))
    assert all(sorted(each) == list(range(1, 10)) for each in ranks) and len(set(ranks)) > 15


def test_only_measured_metrics_are_scored() -> None:
    rows = relevance(
        sweep({"none": 0.75, "0": 0.5}, cosine={"0": 0.125}), 0.25, "acc", removed=0, seed=0
    )
    of_these = {
        name
        for name, metric in METRICS.items()
        if metric.columns[:1] in (("correct",), ("nll",), ("cosine",))
    }
    assert {row["metric"] for row in rows} == of_these >= {"accuracy", "perplexity", "cosine"}
    assert scores(rows, "cosine")["0"]["score"] == pytest.approx(0.125)


def test_the_interval_of_a_difference_shrinks_with_what_samples_share() -> None:
    """Paired: a unit that loses the same ten samples in each draw has a narrow interval."""
    found = scores(
        relevance(sweep({"none": 0.75, "0": 0.7}), 0.25, "acc", removed=0, seed=0), "accuracy"
    )["0"]
    assert found["ci_high"] - found["ci_low"] < 0.15


def test_wilson_interval_is_the_published_one() -> None:
    """10 of 20: 0.2993 to 0.7007 (Wilson's formula, worked by hand)."""
    low, high = wilson_interval(10, 20)
    assert (low, high) == (pytest.approx(0.2993, abs=1e-4), pytest.approx(0.7007, abs=1e-4))
    for total in (1, 7, 125, 500):
        for right in {0, 1, total // 3, total}:
            published = binomtest(right, total).proportion_ci(method="wilson")
            assert wilson_interval(right, total) == pytest.approx(
                (published.low, published.high), abs=1e-7
            )


def test_every_metric_has_a_column_and_a_line_in_the_docs() -> None:
    told = (REPOSITORY / "docs/choose.md").read_text(encoding="utf-8")
    views = queries.views_text(REPOSITORY / "sql/views.sql")
    wide = views[
        views.index("FOR metric IN (") : views.index("COMMENT ON VIEW relevance_wide")
    ].split(")")[0]
    for name in METRICS:
        assert f"'{name}'" in wide, name
        assert any(
            line.startswith("| ") and f"`{name}`" in line.split("|")[1]
            for line in told.splitlines()
        ), name


def test_an_interval_is_never_beyond_what_is_possible_nor_certain_of_what_was_not_seen() -> None:
    """Lost: everything above chance; nothing; and a sample whose every token stayed, in each of a few sizes."""
    for n in (1, 20, 200):
        rows = []
        for unit, share in {"none": 1.0, "0": 0.0, "1": 1.0}.items():
            for sample in range(n):
                told = {"unit": unit, "sample": sample, "nll": float(sample % 3), "n_tokens": 1}
                flips = (
                    {}
                    if unit == "none"
                    else {"output_flips": 1 - share, "cosine": 0.1 * (sample % 4)}
                )
                rows.append(told | {"correct": bool(share), "correct_norm": bool(share)} | flips)
        keys = {"model": "m", "calibration": "c", "selector": "base", "removed": 0}
        found = relevance(store.from_rows("sweeps", rows, **keys), 0.01, "acc", removed=0, seed=0)
        lost, kept = (scores(found, "accuracy")[unit] for unit in "01")
        assert lost["score"] == pytest.approx(1) and lost["ci_low"] < 1 == lost["ci_high"]
        assert kept["score"] == 0 and kept["ci_low"] < 0 < kept["ci_high"] <= 1
        assert lost["ci_low"] > 1 - 4 / n and kept["ci_high"] < 4 / n or n == 1
        changed, same = (scores(found, "agreement")[unit] for unit in "01")
        assert (same["score"], same["ci_low"]) == (0, 0) and 0 < same["ci_high"] <= 1
        assert (changed["score"], changed["ci_high"]) == (1, 1) and 0 <= changed["ci_low"] < 1
        if n > 1:
            # Jeffreys' for 0 of n [Brown, Cai and DasGupta 2001]
            assert same["ci_high"] == pytest.approx(beta.ppf(0.975, 0.5, n + 0.5))
        unknown = scores(found, "cosine")["0"]
        assert (unknown["ci_low"] is None) == (unknown["ci_high"] is None) == (n < 50)

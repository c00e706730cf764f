"""Which model the report names: found again with plain loops, and on planted documents with numpy."""

import numpy as np
import pytest
from scipy.stats import norm

from lamina_workflow.report import database, explorer
from lamina_workflow.report.answers import query_rows as answered
from lamina_workflow.report.answers import recommendations
from tests.given.planted_tables import (
    connect_planted_tables,
    extra_share_stderr,
    share_stderr,
    variant_key,
)
from tests.given.plausible_tables import VIEWS

RECIPE = ("selector", "removed", "repair", "healing")


def surely(row: dict, tried: int, keep: float) -> bool:
    """Whether a share of one task is certain of so many: the error is that of a share at the threshold."""
    ahead = row["own_kept"] - keep
    step = 1 / (row["own_samples"] * row["own_base"])
    return ahead > 0 and ahead / np.sqrt(row["own_kept_stderr"] ** 2 + ahead * step) > norm.isf(
        0.025 / tried
    )


def test_the_recommended_model_is_the_smallest_that_keeps_enough(two_models):
    """Found again with plain loops over the variants."""
    connection = database.connect_views(VIEWS, two_models.glob("*.parquet"))
    rows = recommendations(connection, 0.9, 1.8)
    found = {(row["model"], row["name"]): row for row in rows if row["question"] == "task"}
    assert len(found) == 4
    for (model, calibration), row in found.items():
        mine = [
            v
            for v in explorer.list_variants(connection)
            if (v["model"], v["calibration"]) == (model, calibration)
        ]
        enough = [v for v in mine if v["own_kept"] >= 0.9 and v["text_ratio"] <= 1.8]
        assert row["kept_enough"] == bool(enough)
        if not enough:
            assert row["kept"] == max(v["own_kept"] for v in mine)
            continue
        smallest = [v for v in enough if v["removed"] == max(v["removed"] for v in enough)]
        certain = [v for v in smallest if surely(v, len(mine), 0.9)]
        least = min(v["text_ratio"] for v in certain or smallest)
        assert (row["removed"], row["text_ratio"]) == (smallest[0]["removed"], pytest.approx(least))
        assert row["variants"][0].startswith(
            f"{model}/{calibration}/{row['selector']}/removed={row['removed']}/"
        )


def test_a_recipe_is_a_mean_over_all_tasks(two_models):
    connection = database.connect_views(VIEWS, two_models.glob("*.parquet"))
    rows = recommendations(connection, 0.5, None)
    (recipe,) = [row for row in rows if (row["model"], row["question"]) == ("a", "recipe")]
    same = {"model": "a"} | {key: recipe[key] for key in RECIPE}
    parts = [
        variant for variant in explorer.list_variants(connection) if same.items() <= variant.items()
    ]
    assert recipe["n_tasks"] == len(parts) == 2
    assert recipe["kept"] == pytest.approx(sum(v["own_kept"] for v in parts) / 2)
    lucks = {
        row["calibration"]: row["kept_luck"]
        for row in answered(connection, "FROM kept_means WHERE tasks_of = 'own'")
        if same.items() <= row.items()
    }
    luck = sum(lucks.values()) / 2
    squares = sum((v["own_kept_stderr"] - lucks[v["calibration"]]) ** 2 for v in parts)
    assert recipe["kept_stderr"] == pytest.approx(squares**0.5 / 2 + luck)


def test_of_equals_the_one_with_less_done_to_it_is_recommended(tmp_path):
    """A healing of which no step was better is what it began from, to the last document."""
    rng = np.random.default_rng(0)
    base = {"t": (rng.random(300) < 0.9).astype(float)}
    same = {"t": base["t"] * (rng.random(300) < 0.97)}
    keys = [
        variant_key("c", repair=repair) | dict(healing=healing)
        for repair in ("kept", "none")
        for healing in ("lora", "none")
    ]
    for tried, wanted in ((keys, ("none", "none")), (keys[:2], ("kept", "none"))):
        asked = [dict(calibration="c", source="t")]
        run = connect_planted_tables(
            tmp_path / str(len(tried)), base, [(key, same) for key in tried], asked
        )
        (card,) = recommendations(run, 0.9, None)
        assert (card["repair"], card["healing"], card["n_tried"]) == (*wanted, len(tried))


def test_the_share_may_be_counted_from_chance(tmp_path):
    """Two layers out keep 94 % of the number and 91 % of what guessing does not reach; one layer 97 % and 96 %."""
    rng = np.random.default_rng(1)
    base = {"t": (rng.random(2000) < 0.9).astype(float)}
    cut = {
        removed: {"t": base["t"] * (rng.random(2000) < share)}
        for removed, share in ((1, 0.985), (2, 0.94))
    }
    run = connect_planted_tables(
        tmp_path,
        base,
        [(variant_key("c", removed=n), docs) for n, docs in cut.items()],
        [dict(calibration="c", source="t")],
    )
    for counted_from, removed in (("zero", 2), ("chance", 1)):
        (card,) = recommendations(run, 0.93, None, counted_from)
        value, b = cut[removed]["t"].mean(), base["t"].mean()
        assert (card["removed"], card["kept_enough"]) == (removed, True)
        assert (card["kept"], card["kept_above_chance"]) == pytest.approx(
            (value / b, (value - 0.25) / (b - 0.25))
        )
        assert card["share"] == card["kept" if counted_from == "zero" else "kept_above_chance"]


def test_what_is_certain_of_one_is_not_of_the_best_of_many(tmp_path):
    """The same variant, alone and among 35: the threshold moves from 1.96 standard errors to 3.19."""
    rng = np.random.default_rng(2)
    base = {"t": (rng.random(800) < 0.95).astype(float)}
    best = {"t": base["t"].copy()}
    best["t"][np.flatnonzero(base["t"])[:20]] = 0.0  # 20 of 760 right answers lost, 2.6 %
    worse = {"t": base["t"] * (rng.random(800) < 0.9)}
    told = []
    for others in (0, 34):
        variants = [
            (variant_key("c"), best),
            *((variant_key("c", f"s{n}"), worse) for n in range(others)),
        ]
        run = connect_planted_tables(
            tmp_path / str(others), base, variants, [dict(calibration="c", source="t")]
        )
        (card,) = recommendations(run, 0.95, None)
        assert (card["selector"], card["n_tried"]) == ("s", 1 + others)
        right = base["t"].sum()
        ahead = 1 - 20 / right - 0.95
        error = share_stderr(best["t"], base["t"]) + extra_share_stderr(best["t"], base["t"])
        assert card["kept_stderr"] == pytest.approx(error)
        assert card["certain"] is bool(
            ahead / np.sqrt(error**2 + ahead / right) > norm.isf(0.025 / card["n_tried"])
        )
        told.append(card["certain"])
    assert told == [True, False]

"""Replicates: made from one entry, averaged with their spread in views, figures and report."""

import copy
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.checks import load
from lamina_workflow.report import answers, cautions, database
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.drawing import draw_figure
from lamina_workflow.study import requests, sweeps
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.plausible_tables import VIEWS, write_study

DRAWS = ("recall", "recall.2", "recall.3")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_model_and_data(tmp_path)


def replicated(**more: Any) -> Any:
    raw = set_key(
        minimal_config(),
        "calibrations.recall",
        {"task": "microworld_recall", "limit": 40, "seed": 5, "replicates": 3},
    )
    set_key(
        raw,
        "calibrations.corpus",
        {"text": "microworld_corpus", "documents": "10:30", "replicates": 2},
    )
    for where, value in more.items():
        set_key(raw, where.replace("__", "."), value)
    return raw


def test_replicates_differ_in_what_they_draw_and_share_a_group(root: Path) -> None:
    loaded = load.load_configuration(replicated(), root)
    recall = {name: entry for name, entry in loaded.calibrations.items() if entry.group == "recall"}
    assert {name: entry.seed for name, entry in recall.items()} == {
        "recall": 5,
        "recall.2": 6,
        "recall.3": 7,
    }
    assert loaded.calibrations["corpus.2"].documents == "30:50"
    assert [name for name in loaded.studies["prune"].calibrations if "recall" in name] == list(
        DRAWS
    )
    assert load.load_configuration(copy.deepcopy(loaded.plain()), root) == loaded


def test_replicates_only_add_jobs(root: Path) -> None:
    once = replicated()
    for name in ("recall", "corpus"):
        del once["calibrations"][name]["replicates"]
    before, after = (
        load.load_configuration(once, root),
        load.load_configuration(replicated(), root),
    )
    for name in ("recall", "corpus"):
        assert after.calibrations[name].options() == before.calibrations[name].options()
    assert set(requests.list_variants(before)) < set(requests.list_variants(after))
    assert set(sweeps.list_sweeps(before)) < set(sweeps.list_sweeps(after))


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("calibrations.recall.limit", None, ["calibrations.recall.replicates", "all samples"]),
        ("calibrations.corpus.documents", None, ["calibrations.corpus.replicates", '"0:500"']),
        (
            "selectors.deepest",
            {"strategy": "deepest", "replicates": 2},
            ["selectors.deepest.replicates", "nothing is"],
        ),
        ("calibrations.recall.replicates", 0, ["calibrations.recall.replicates", "at least 1"]),
        (
            "calibrations.recall.group",
            "mixture",
            ["calibrations.recall.group", "'mixture' is also the name"],
        ),
    ],
)
def test_draws_that_cannot_differ_are_refused(
    root: Path, where: str, value: Any, words: list[str]
) -> None:
    with pytest.raises(LaminaError) as refused:
        load.load_configuration(set_key(replicated(), where, value), root)
    assert all(word in str(refused.value) for word in words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study on three draws of one calibration and one alone, with two selectors that are draws of one."""
    folder = tmp_path_factory.mktemp("replicated")
    write_study(
        folder, n_layers=4, calibrations=(*DRAWS, "facts"), sizes=(1, 2), healed_size=1, n_test=30
    )
    labels = {
        "calibrations": dict.fromkeys(DRAWS, "recall"),
        "plans": {"random": "some", "deepest": "some"},
    }
    for table, key in (("calibrations", "calibration"), ("plans", "selector")):
        file = folder / f"{table}.parquet"
        found = pq.read_table(file).to_pylist()
        rows = [row | {"replicate_of": labels[table].get(row[key])} for row in found]
        for row in rows:
            if table == "calibrations" and row["replicate_of"]:
                row["source"] = "microworld_recall"
        parquet.write_table(file, parquet.from_rows(table, rows))
    return folder


@pytest.fixture
def run(folder: Path) -> duckdb.DuckDBPyConnection:
    return database.connect_views(VIEWS, folder.glob("*.parquet"))


def test_means_over_draws_have_their_spread_and_students_interval(
    run: duckdb.DuckDBPyConnection,
) -> None:
    found = answers.query_rows(run, "FROM relevance_means")
    assert {row["calibration"] for row in found} == {"recall"} and len(found) == 2 * 4
    every = answers.query_rows(run, "FROM relevance")
    for row in found:
        same = [
            r
            for r in every
            if all(r[key] == row[key] for key in ("metric", "unit")) and r["selector"] == "base"
        ]
        scores = [r["score"] for r in same if r["calibration"] in DRAWS]
        assert len(scores) == row["n_draws"] == 3
        low, high = stats.t.interval(0.95, 2, np.mean(scores), stats.sem(scores))
        assert (row["score"], row["spread"]) == pytest.approx(
            (np.mean(scores), np.std(scores, ddof=1))
        )
        assert (row["ci_low"], row["ci_high"]) == pytest.approx(
            (low, high), abs=1e-3 * (high - low)
        )
        assert row["n_samples"] == 1500


def test_scores_of_all_draws_of_calibration_and_selector_are_averaged(
    run: duckdb.DuckDBPyConnection,
) -> None:
    bare = "task = 'microworld_recall' AND repair = 'none' AND healing = 'none' AND removed = 2"
    found = {
        (row["calibration"], row["selector"]): row
        for row in answers.query_rows(run, f"FROM score_means WHERE {bare}")
    }
    assert found.keys() == {("recall", s) for s in ("accuracy", "cosine", "angular", "some")} | {
        ("facts", "some")
    }

    def scores(selector: str) -> list[float]:
        where = (
            f"{bare} AND selector = '{selector}' AND calibration IN {DRAWS} ORDER BY calibration"
        )
        return [row["value"] for row in answers.query_rows(run, f"FROM scores WHERE {where}")]

    some, values = found["recall", "some"], np.array([scores("random"), scores("deepest")])
    assert values.shape == (2, 3) and (
        some["n_selectors"],
        some["n_calibrations"],
        some["n_draws"],
    ) == (2, 3, 6)
    assert some["own"] and some["n_samples"] == 30
    # Six variants are two selectors on three calibrations, and no six draws of either.
    means = values.mean(axis=1), values.mean(axis=0)
    assert some["value"] == pytest.approx(values.mean())
    assert some["spread"] == pytest.approx(np.hypot(*(np.std(each, ddof=1) for each in means)))
    reach = np.hypot(*(stats.t.ppf(0.975, len(each) - 1) * stats.sem(each) for each in means))
    assert (some["ci_low"], some["ci_high"]) == pytest.approx(
        (values.mean() - reach, values.mean() + reach), rel=1e-3
    )
    one, alone = found["recall", "cosine"], scores("cosine")
    assert (one["n_selectors"], one["n_calibrations"]) == (1, 3)
    low, high = stats.t.interval(0.95, 2, np.mean(alone), stats.sem(alone))
    assert (one["ci_low"], one["ci_high"]) == pytest.approx((low, high), abs=1e-3 * (high - low))


def test_figures_show_replicates_as_their_mean(run: duckdb.DuckDBPyConnection) -> None:
    maps = draw_figure("relevance_maps", run).figure
    assert [tick.get_text() for tick in maps.axes[0].get_xticklabels()] == [
        "facts",
        "recall\n(mean of 3)",
    ]
    unit = answers.query_rows(run, "FROM relevance_means WHERE metric = 'accuracy' AND unit = '1'")[
        0
    ]
    shown = f"{unit['score']:.2f}\n±{unit['spread']:.2f}".replace("-", "−")
    assert shown in [text.get_text() for text in maps.axes[0].texts]
    curves = draw_figure("pruning_curves", run).figure
    assert [axes.get_title(loc="left") for axes in curves.axes] == ["facts", "recall"]
    assert "some (mean of 6)" in [text.get_text() for text in curves.legends[0].get_texts()]
    assert "replicates (n = 2 to 6 draws)" in draw_figure("pruning_curves", run).caption
    assert "Student's t" in draw_figure("relevance_maps", run).caption
    assert set(style.Theme(run).selector_styles) >= {"some", "random", "accuracy"}


def test_the_report_says_how_much_hangs_on_the_draw(run: duckdb.DuckDBPyConnection) -> None:
    spreads = [
        row["spread"]
        for row in answers.query_rows(run, "FROM relevance_means WHERE metric = 'accuracy'")
    ]
    told = cautions.describe_spread_of_draws(run)
    assert (
        f"standard deviation of {np.median(spreads):.3f} from draw to draw in the median of 4 layers"
        in told[0]
    )
    assert any(sentence.startswith("some on recall, drawn 6 times") for sentence in told)

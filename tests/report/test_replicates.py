"""Replicates are made from one entry and averaged with their spread: against scipy."""

import copy
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import stats

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.checks import load
from lamina_workflow.report import answers, cautions, database
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.drawing import draw_figure
from lamina_workflow.study import requests, sweeps
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data
from tests.given.plausible_tables import write_study

DRAWS = ("recall", "recall.2", "recall.3")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_model_and_data(tmp_path)


def configure_calibrations(recall: RawConfig, corpus: RawConfig) -> RawConfig:
    """The minimal configuration with these keys more for a task and a text."""
    task = {"task": "microworld_recall", "limit": 40, "seed": 5}
    text = {"text": "microworld_corpus", "documents": "10:30"}
    raw = set_key(minimal_config(), "calibrations.recall", task | recall)
    return set_key(raw, "calibrations.corpus", text | corpus)


def configure_replicates() -> RawConfig:
    return configure_calibrations({"replicates": 3}, {"replicates": 2})


def test_replicates_differ_in_what_they_draw_and_share_a_group(root: Path) -> None:
    configuration = load.load_configuration(configure_replicates(), root)

    seeds = {
        name: entry.seed
        for name, entry in configuration.calibrations.items()
        if entry.group == "recall"
    }
    assert seeds == {"recall": 5, "recall.2": 6, "recall.3": 7}
    assert configuration.calibrations["corpus.2"].documents == "30:50"


def test_a_study_of_a_replicated_calibration_has_all_its_draws(root: Path) -> None:
    configuration = load.load_configuration(configure_replicates(), root)

    calibrations = configuration.studies["prune"].calibrations
    assert [name for name in calibrations if "recall" in name] == list(DRAWS)


def test_a_configuration_with_its_replicates_written_out_is_the_same(root: Path) -> None:
    configuration = load.load_configuration(configure_replicates(), root)

    assert load.load_configuration(copy.deepcopy(configuration.plain()), root) == configuration


def test_replicates_only_add_jobs(root: Path) -> None:
    once = load.load_configuration(configure_calibrations({}, {}), root)
    replicated = load.load_configuration(configure_replicates(), root)

    for name in ("recall", "corpus"):
        first_draw = replicated.calibrations[name]
        assert first_draw.options() == once.calibrations[name].options()
    assert set(requests.list_variants(once)) < set(requests.list_variants(replicated))
    assert set(sweeps.list_sweeps(once)) < set(sweeps.list_sweeps(replicated))


@pytest.mark.parametrize(
    ("key", "value", "words"),
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
    root: Path, key: str, value: Any, words: list[str]
) -> None:
    with pytest.raises(LaminaError) as refusal:
        load.load_configuration(set_key(configure_replicates(), key, value), root)

    for word in words:
        assert word in str(refusal.value)


@pytest.fixture(scope="module")
def replicated_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of three draws of one calibration and one alone; two selectors are draws of `some`."""
    folder = tmp_path_factory.mktemp("replicated")
    calibrations = (*DRAWS, "facts")
    write_study(
        folder, n_layers=4, calibrations=calibrations, sizes=(1, 2), healed_size=1, n_test=30
    )

    calibration_rows = parquet.read_table(folder / "calibrations.parquet").to_pylist()
    for row in calibration_rows:
        if row["calibration"] in DRAWS:
            row |= {"replicate_of": "recall", "source": "microworld_recall"}
    calibration_table = parquet.from_rows("calibrations", calibration_rows)
    parquet.write_table(folder / "calibrations.parquet", calibration_table)

    plan_rows = parquet.read_table(folder / "plans.parquet").to_pylist()
    for row in plan_rows:
        if row["selector"] in ("random", "deepest"):
            row["replicate_of"] = "some"
    parquet.write_table(folder / "plans.parquet", parquet.from_rows("plans", plan_rows))
    return folder


@pytest.fixture(scope="module")
def connection(replicated_study: Path) -> duckdb.DuckDBPyConnection:
    return database.connect_views(replicated_study.glob("*.parquet"))


def test_a_mean_score_over_draws_has_their_spread_and_students_interval(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    means = answers.query_rows(connection, "FROM relevance_means")

    assert len(means) == 2 * 4  # two metrics of four layers
    for mean in means:
        rows = answers.query_rows(
            connection,
            f"""SELECT score FROM relevance WHERE selector = 'base' AND calibration IN {DRAWS}
            AND metric = '{mean["metric"]}' AND unit = '{mean["unit"]}'""",
        )
        scores = [row["score"] for row in rows]
        low, high = stats.t.interval(0.95, 2, np.mean(scores), stats.sem(scores))
        tolerance = 1e-3 * (high - low)
        assert mean["calibration"] == "recall"
        assert mean["n_draws"] == len(scores) == 3
        assert mean["n_samples"] == 1500
        assert mean["score"] == pytest.approx(np.mean(scores))
        assert mean["spread"] == pytest.approx(np.std(scores, ddof=1))
        assert mean["ci_low"] == pytest.approx(low, abs=tolerance)
        assert mean["ci_high"] == pytest.approx(high, abs=tolerance)


BARE_WITHOUT_TWO_LAYERS = """
    task = 'microworld_recall' AND repair = 'none' AND healing = 'none' AND removed = 2"""


def query_means(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], dict[str, Any]]:
    """Mean accuracies on the task `recall`, by calibration and selector."""
    rows = answers.query_rows(connection, f"FROM score_means WHERE {BARE_WITHOUT_TWO_LAYERS}")
    return {(row["calibration"], row["selector"]): row for row in rows}


def query_draws(connection: duckdb.DuckDBPyConnection, selector: str) -> list[float]:
    """The accuracies on the task `recall` of all draws of the calibration."""
    rows = answers.query_rows(
        connection,
        f"""FROM scores WHERE {BARE_WITHOUT_TWO_LAYERS} AND selector = '{selector}'
        AND calibration IN {DRAWS} ORDER BY calibration""",
    )
    return [row["value"] for row in rows]


def test_means_stand_for_the_draws_of_a_calibration_and_of_a_selector(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    assert query_means(connection).keys() == {
        ("recall", "accuracy"),
        ("recall", "cosine"),
        ("recall", "angular"),
        ("recall", "some"),
        ("facts", "some"),
    }


def test_accuracies_of_one_selector_have_students_interval_over_calibrations(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    mean = query_means(connection)["recall", "cosine"]

    values = query_draws(connection, "cosine")
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert mean["n_selectors"] == 1
    assert mean["n_calibrations"] == 3
    assert mean["ci_low"] == pytest.approx(low, abs=1e-3 * (high - low))
    assert mean["ci_high"] == pytest.approx(high, abs=1e-3 * (high - low))


def test_accuracies_of_two_selectors_vary_by_selector_and_by_calibration(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Six variants are two selectors on three calibrations, and no six draws of either."""
    mean = query_means(connection)["recall", "some"]

    values = np.array([query_draws(connection, "random"), query_draws(connection, "deepest")])
    by_selector = values.mean(axis=1)
    by_calibration = values.mean(axis=0)
    spread = np.hypot(np.std(by_selector, ddof=1), np.std(by_calibration, ddof=1))
    selector_reach = stats.t.ppf(0.975, 1) * stats.sem(by_selector)
    calibration_reach = stats.t.ppf(0.975, 2) * stats.sem(by_calibration)
    reach = np.hypot(selector_reach, calibration_reach)
    assert values.shape == (2, 3)
    assert mean["n_selectors"] == 2
    assert mean["n_calibrations"] == 3
    assert mean["n_draws"] == 6
    assert mean["n_samples"] == 30
    assert mean["own"]
    assert mean["value"] == pytest.approx(values.mean())
    assert mean["spread"] == pytest.approx(spread)
    assert mean["ci_low"] == pytest.approx(values.mean() - reach, rel=1e-3)
    assert mean["ci_high"] == pytest.approx(values.mean() + reach, rel=1e-3)


def test_relevance_maps_show_replicates_as_their_mean(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    drawing = draw_figure("relevance_maps", connection)

    [mean] = answers.query_rows(
        connection, "FROM relevance_means WHERE metric = 'accuracy' AND unit = '1'"
    )
    cell = f"{mean['score']:.2f}\n±{mean['spread']:.2f}".replace("-", "−")
    axes = drawing.figure.axes[0]
    columns = [label.get_text() for label in axes.get_xticklabels()]
    assert columns == ["facts", "recall\n(mean of 3)"]
    assert cell in [text.get_text() for text in axes.texts]
    assert "Student's t" in drawing.caption


def test_pruning_curves_show_replicates_as_their_mean(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    drawing = draw_figure("pruning_curves", connection)

    titles = [axes.get_title(loc="left") for axes in drawing.figure.axes]
    legend = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert titles == ["facts", "recall"]
    assert "some (mean of 6)" in legend
    assert "Replicates (n = 2 to 6 draws)" in drawing.caption


def test_a_group_of_selectors_and_its_members_have_a_style(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    assert style.Theme(connection).selector_styles.keys() >= {"some", "random", "accuracy"}


def test_the_report_says_how_much_depends_on_the_draw(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    sentences = cautions.describe_spread_of_draws(connection)

    means = answers.query_rows(connection, "FROM relevance_means WHERE metric = 'accuracy'")
    spread = np.median([mean["spread"] for mean in means])
    of_scores = f"standard deviation of {spread:.3f} (median of 4 layers)"
    assert of_scores in sentences[0]
    assert any(sentence.startswith("some on recall, drawn 6 times") for sentence in sentences)

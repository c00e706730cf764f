"""The views, the data dictionary and the queries, on small tables written as a run writes them."""

import json
import re
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.report import answers, database, summary
from lamina_workflow.stages.report import GatherTable
from tests import ROOT
from tests.given.planted_tables import BASE_KEY, connect_planted_tables, variant_key
from tests.given.plausible_tables import VIEWS, write_study, write_tables
from tests.given.scripts import run_in_subprocess

QUERIES = sorted((ROOT / "sql" / "queries").glob("*.sql"))


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("study") / "results" / "tables"
    return write_study(
        folder,
        n_layers=6,
        calibrations=("recall", "facts", "hops", "sorting"),
        sizes=(1, 2),
        healed_size=2,
        n_test=60,
    )


@pytest.fixture
def planted(tmp_path) -> duckdb.DuckDBPyConnection:
    """Ten test documents, right for the base model; removing 1 loses none, 2 loses four, ghost returns two."""
    answered = {(1, "none"): 10, (2, "none"): 6, (2, "ghost"): 8}
    variants = [
        (variant_key("recall", "accuracy", removed, repair), {"t": np.arange(10) < right})
        for (removed, repair), right in answered.items()
    ]
    plan = dict(model="m", calibration="recall", selector="accuracy")
    plans = [
        plan | dict(removed=size, unit=str(unit), position=unit)
        for size, unit in ((1, 1), (2, 1), (2, 2))
    ]
    own = [dict(calibration="recall", source="t", chance_accuracy=0.5)]
    return connect_planted_tables(tmp_path, {"t": np.ones(10)}, variants, own, plans=plans)


# What the study of these tests does not have: replicates, shared documents, outputs that are not finite, known models.
NOT_THERE = {
    *(
        "how_far_variants_vary_between_draws",
        "how_sure_rankings_are",
        "what_calibrations_share_with_tests",
    ),
    *(
        "what_diagnoses_found",
        "what_papers_report",
        "where_outputs_were_not_finite",
        "which_questions_no_score_decides",
        "which_questions_were_cut",
    ),
    "which_repairs_hurt",
}
# Questions that measure nothing, or say counts and intervals in a sentence.
LISTS = {
    "which_questions_no_score_decides",
    "which_questions_were_cut",
    "which_plans_were_refused",
}
# Questions whose numbers are counts and means over a few of them, one measurement each, or every sample's own.
COUNTS = {"how_healing_went", "what_a_metric_costs", "what_samples_say_of_layers"}


def answer(files: list[Path], question: str) -> list[dict]:
    return answers.answer_question(database.connect_views(VIEWS, files), question)


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_every_query_says_what_it_asks_and_answers_it(query, study, monkeypatch):
    monkeypatch.chdir(ROOT)  # where one finds what papers report
    text = query.read_text(encoding="utf-8")
    assert text.startswith("-- ") and text.splitlines()[0].endswith("?")
    assert f"sql/queries/{query.name}" in text
    found = answers.query_rows(database.connect_views(VIEWS, study), text)
    assert found or query.stem in NOT_THERE
    names = set(found[0]) if found else set()
    counted = any(
        re.search(r"^n$|^n_|_samples$|^repeats$|^step$|^measured$", name) for name in names
    )
    erring = any(
        re.search(r"stderr|_low$|^low$|^reach$|_tried$|^spread$|^p_holm$|^best$", name)
        for name in names
    )
    assert counted or query.stem in LISTS | NOT_THERE, "a number needs its sample count"
    assert erring or query.stem in LISTS | COUNTS | NOT_THERE, "a number needs its error"


def test_what_pruning_costs_a_task_is_paired_with_the_base_model(planted):
    one, two = answers.answer_question(planted, "what_pruning_for_one_task_costs_the_others")
    assert (one["removed"], one["metric"], one["value"], one["change"]) == (1, "acc_norm", 1.0, 0.0)
    assert two["change"] == pytest.approx(-0.4)
    # Of ten documents four are lost, and one more differs in each direction.
    assert two["paired"] and two["change_stderr"] == pytest.approx(
        ((6 / 12 - (4 / 12) ** 2) / 12) ** 0.5
    )
    assert (two["kept"], two["n_samples"], two["chance"]) == (pytest.approx(0.6), 10, 0.5)
    # Ten documents: always right is less than four standard errors of a guess, √(.25 / 10), above chance.
    assert two["kept_stderr"] is None and two["kept_reason"] == "too few"


def test_a_disagreement_is_confirmed_where_others_tie_at_the_top(tmp_path):
    """Accuracy loses nothing without layer 0, which cosine places last; layers 2 and 3 lose all, alike."""
    rows = []
    for layer, (accuracy, cosine) in enumerate(((0.0, 0.9), (0.4, 0.1), (1.0, 0.2), (1.0, 0.3))):
        key = dict(
            model="m", calibration="c", selector="base", removed=0, unit=str(layer), layer=layer
        )
        for metric, score in (("accuracy", accuracy), ("cosine", cosine)):
            told = dict(metric=metric, score=score, ci_low=score - 0.02, ci_high=score + 0.02)
            rows.append(key | told | dict(component="layer", n_samples=500))
    found = {
        row["layer"]: row
        for row in answer(write_tables(tmp_path, relevance=rows), "where_metrics_disagree")
    }
    assert found[0]["rank_difference"] == -3 and found[0]["confirmed"]
    assert not found[3]["confirmed"], "at cosine's place accuracy has an equal"


def test_the_model_to_take_is_the_largest_removal_that_keeps_95_percent(planted):
    (found,) = (
        row
        for row in answers.answer_question(planted, "which_model_to_take")
        if row["question"] == "task"
    )
    assert (found["removed"], found["sizes"], found["units"], found["kept"]) == (
        1,
        [1, 2],
        "1",
        1.0,
    )
    assert found["kept_above_chance"] == 1.0
    assert found["certain"] is None and found["kept_reason"] == "too few"  # ten documents


def test_the_frontier_compares_means_over_the_same_calibrations(tmp_path):
    """Selector b has no plan for calibration z, which then counts for nobody; `late` and c were tried on x alone.

    Means over x, y and z, of two pairs, or over x, of five, would keep no more variants than the six on x and y.
    """
    measured = {  # accuracy on the own task and perplexity of general text, x then y then z
        ("a", "none"): [(0.6, 10.0), (0.4, 10.0), (0.0, 99.0)],
        ("a", "ghost"): [(0.8, 40.0), (0.8, 90.0), (1.0, 1.0)],
        ("b", "none"): [(0.4, 20.0), (0.4, 20.0)],
        ("a", "late"): [(0.9, 9.0)],
        ("c", "none"): [(0.9, 9.0)],
    }
    facts = dict(stderr=0.1, n_samples=10)
    benchmarks = [
        BASE_KEY | facts | dict(task=name, metric="acc", value=1.0, higher_is_better=True)
        for name in "xyz"
    ]
    benchmarks.append(
        BASE_KEY | facts | dict(task="text", metric="perplexity", value=8.0, higher_is_better=False)
    )
    for (selector, repair), pairs in measured.items():
        for name, (accuracy, perplexity) in zip("xyz", pairs, strict=False):
            key = variant_key(name, selector, repair=repair) | facts
            benchmarks.append(
                key | dict(task=name, metric="acc", value=accuracy, higher_is_better=True)
            )
            benchmarks.append(
                key
                | dict(task="text", metric="perplexity", value=perplexity, higher_is_better=False)
            )
    calibrations = [
        dict(model="m", calibration=name, kind="choices", source=name) for name in "xyz"
    ]
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=calibrations)
    found = answers.query_rows(
        database.connect_views(VIEWS, files), "FROM frontier ORDER BY selector, repair"
    )
    told = [(row["selector"], row["repair"], row["best"]) for row in found]
    assert told == [("a", "ghost", True), ("a", "none", True), ("b", "none", False)]
    assert [row["accuracy"] for row in found] == pytest.approx([0.8, 0.5, 0.4])
    assert [row["perplexity"] for row in found] == pytest.approx([60.0, 10.0, 20.0])
    assert found[0]["accuracy_stderr"] == pytest.approx(0.1 / 2**0.5)
    assert {(row["n_calibrations"], row["n_samples"]) for row in found} == {(2, 20)}
    best = answer(files, "which_repair_when")
    told = [(row["general_text"], row["repair"], row["lead"]) for row in best]
    assert told == [("1.5 x", "none", 0), ("any", "ghost", pytest.approx(0.3))]


def test_own_task_of_a_mixture_is_each_of_its_sources(tmp_path):
    row = dict(model="m", metric="acc", value=0.5, stderr=0.1, n_samples=9, higher_is_better=True)
    benchmarks = [BASE_KEY | row | dict(task=task) for task in ("a", "b", "c")]
    mixture = dict(
        model="m", calibration="mixture", kind="choices", chance_accuracy=0.3, source="a, b"
    )
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=[mixture])
    found = answers.query_rows(
        database.connect_views(VIEWS, files), "SELECT task, chance FROM own_tasks ORDER BY task"
    )
    assert found == [dict(task="a", chance=None), dict(task="b", chance=None)]


def test_perplexities_are_paired_by_the_nll_of_their_windows(tmp_path):
    base, shift = np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3])
    run = connect_planted_tables(
        tmp_path, {"text": base}, [(variant_key("c"), {"text": base + shift})], []
    )
    (score,) = answers.query_rows(run, "FROM scores WHERE removed = 1")
    assert score["paired"] and score["kept"] == pytest.approx(np.exp(-0.2))
    assert score["kept_stderr"] == pytest.approx(np.exp(-0.2) * shift.std(ddof=1) / 3**0.5)


def test_a_variant_has_the_cost_of_one_that_costs_the_same_and_no_other(tmp_path):
    """Three plans of two layers: 1 2 is one run, 1 3 and 2 4 are two. Only the first two were timed with a patch."""
    plan = dict(model="m", calibration="c", removed=2)
    units = {"one": (1, 2), "two": (1, 3), "other": (2, 4), "halves": ("1.mlp", "2.mlp")}
    plans = [
        plan | dict(selector=name, unit=str(unit), position=place)
        for name, both in units.items()
        for place, unit in enumerate(both, 1)
    ]
    timed = {("one", "none"): 0.8, ("one", "ghost"): 0.85, ("two", "ghost"): 0.9}
    efficiency = [
        variant_key("c", name, 2, repair) | dict(latency_ratio=ratio)
        for (name, repair), ratio in timed.items()
    ]
    benchmarks = [
        variant_key("c", name, 2, repair)
        | dict(healing=healing, task="t", metric="acc", higher_is_better=True)
        for name in units
        for repair in ("none", "ghost")
        for healing in ("none", "lora")
    ]
    files = write_tables(tmp_path, plans=plans, efficiency=efficiency, benchmarks=benchmarks)
    found = answers.query_rows(
        database.connect_views(VIEWS, files), "SELECT selector, repair, latency_ratio FROM variants"
    )
    wanted = (
        timed | dict.fromkeys([("two", "none"), ("other", "none")], 0.8) | {("other", "ghost"): 0.9}
    )
    wanted |= dict.fromkeys([("halves", "none"), ("halves", "ghost")])
    assert {(row["selector"], row["repair"]): row["latency_ratio"] for row in found} == wanted
    assert len(found) == len(benchmarks)


def test_only_the_named_tables_are_opened(study):
    """Another job may be writing every other file, so that these may be anything."""
    broken = study[0].with_name("jobs.parquet")
    kept = broken.read_bytes()
    broken.write_bytes(b"half a file")
    try:
        some = [path for path in study if path.stem in ("relevance", "models")]
        connection = database.connect_views(VIEWS, some)
        assert connection.execute("SELECT count(*) FROM disagreements").fetchall()[0][0] > 0
        found = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
        views = {row[0] for row in found}
        assert views == {
            "relevance",
            "models",
            "relevance_wide",
            "disagreements",
            "task_agreements",
        }
        for view in ("plans", "scores", "jobs"):
            with pytest.raises(duckdb.CatalogException, match=view):
                connection.execute(f"FROM {view}")
    finally:
        broken.write_bytes(kept)


def test_the_database_describes_every_table_and_column(study, tmp_path):
    database.build_database(VIEWS, study, tmp_path / "lamina.duckdb")
    with duckdb.connect(tmp_path / "lamina.duckdb", read_only=True) as connection:
        described = connection.execute(
            "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal"
        )
        comments = {(table, column): comment for table, column, comment in described.fetchall()}
        tables = connection.execute(
            "SELECT table_name, comment FROM duckdb_tables() WHERE schema_name = 'main'"
        ).fetchall()
    assert [name for name, comment in [*tables, *comments.items()] if not comment] == []
    for table, module in parquet.TABLES.items():
        assert (table, module.grain) in tables
        assert {column: comments[table, column] for column in module.columns} == {
            column: text for column, (_, text) in module.columns.items()
        }
    # A column that a view hands on is described as where it comes from.
    assert comments["disagreements", "accuracy_low"] == comments["relevance_wide", "accuracy_low"]
    assert comments["scores", "stderr"] == comments["benchmarks", "stderr"]


def test_database_refuses_to_lack_a_table(study, tmp_path):
    with pytest.raises(LaminaError, match="no models.parquet among"):
        database.build_database(
            VIEWS, [path for path in study if path.stem != "models"], tmp_path / "x.duckdb"
        )
    assert list(tmp_path.iterdir()) == []


def gathered(tmp_path: Path, table: str, *parts: Path, **groups: str) -> list[dict]:
    output = tmp_path / f"{table}.parquet"
    done = run_in_subprocess(
        GatherTable(table=table, parts=list(map(str, parts)), groups=groups, output=str(output))
    )
    assert done.returncode == 0, done.stderr
    assert parquet.read_table(output).schema.names == parquet.schema_of(table).names
    return parquet.read_table(output).to_pylist()


def test_plans_are_gathered_with_refusals(tmp_path):
    plan = dict(
        model="m", calibration="c", selector="s", removed=2, metric="accuracy", strategy="iterative"
    )
    plan |= dict(kind="layer")
    measured = dict(
        units=["7", "3"], scores=[0.1, None], accuracy_before=[0.9, 0.8], accuracy_after=[0.8, 0.7]
    )
    nothing = dict(
        units=[], scores=[], accuracy_before=None, accuracy_after=None, refused="take more samples"
    )
    (tmp_path / "a.json").write_text(json.dumps(plan | measured | dict(refused=None)))
    (tmp_path / "b.json").write_text(json.dumps(plan | nothing))
    rows = gathered(tmp_path, "plans", tmp_path / "a.json", tmp_path / "b.json")
    placed = [(row["unit"], row["position"], row["score"]) for row in rows]
    assert placed == [("7", 1, 0.1), ("3", 2, None), (None, None, None)]
    assert rows[1]["accuracy_after"] == 0.7
    assert rows[2]["refused"] == "take more samples"


def test_calibrations_are_gathered_from_their_metadata(tmp_path):
    path = tmp_path / "calibrations" / "reference" / "recall.parquet"
    path.parent.mkdir(parents=True)
    described = dict(
        kind="choices",
        n_samples=5,
        n_tokens=80,
        n_cut=1,
        n_undecided=2,
        chance_accuracy=0.25,
        source="t",
    )
    described |= dict(split="train", seed=0)
    metadata = {b"lamina.calibration": json.dumps(described).encode()}
    pq.write_table(pa.table({"sample": [0]}).replace_schema_metadata(metadata), path)
    (row,) = gathered(tmp_path, "calibrations", path)
    named = dict(
        model="reference", calibration="recall", replicate_of=None, choice_score="acc_norm"
    )
    assert row == named | described | dict(n_asked=None, n_right=None, temperature=None)
    (row,) = gathered(tmp_path, "calibrations", path, recall="draws")
    assert row["replicate_of"] == "draws"


def test_what_is_written_stands_beside_choices_and_never_for_them(tmp_path):
    """Of every task the main metric is what it measures itself, whatever its samples are called."""
    row = dict(n_samples=9, higher_is_better=True)
    first = {"acc": 0.8, "exact_match,written": 0.5, "pass@5": 0.9, "repetition": 0.1}
    second = {"exact_match,strict-match": 0.6, "pass@1,strict-match": 0.7, "sampled_length": 0.2}
    measured = [
        key | row | dict(task=task, metric=metric, value=factor * value, stderr=factor * 0.1)
        for key, factor in ((BASE_KEY, 1.0), (variant_key("c"), 0.5))
        for task, metrics in (("t", first), ("u", second))
        for metric, value in metrics.items()
    ]
    own = [dict(model="m", calibration="c", kind="choices", source="t")]
    write_tables(tmp_path, benchmarks=measured, calibrations=own)
    connection = database.connect_views(VIEWS, tmp_path.glob("*.parquet"))
    assert summary.compare_writing_with_choosing(connection)[0].endswith(
        "writes them itself: no repair 50 % and 50 % (n = 1 variants)."
    )
    main = connection.execute("SELECT DISTINCT task, metric FROM scores ORDER BY task").fetchall()
    assert main == [("t", "acc"), ("u", "exact_match,strict-match")]
    (both,) = answers.query_rows(connection, "FROM choices_and_generation WHERE removed = 1")
    assert (both["task"], both["choice"], both["written"]) == ("t", 0.4, 0.25)
    # Independent tests: relative errors add in squares.
    assert (both["choice_kept"], both["written_kept"]) == (0.5, 0.5)
    assert both["written_kept_stderr"] == pytest.approx(0.5 * (0.2**2 + 0.2**2) ** 0.5)

"""The views, the data dictionary and the queries, on small tables written as a run writes them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.report import answers, database, summary
from lamina_workflow.report.queries import read_query
from lamina_workflow.stages.report import GatherTable
from tests import ROOT
from tests.given.planted_tables import BASE_KEY, connect_planted_tables, variant_key
from tests.given.plausible_tables import write_study, write_tables
from tests.given.scripts import run_in_subprocess

QUERIES = sorted((ROOT / "sql" / "queries").glob("*.sql"))
# The study of these tests has no replicates, no checkpoints, no shared documents, no papers and no
# infinite output.
UNANSWERED = {
    "how_far_variants_vary_between_draws",
    "how_relevance_forms_in_training",
    "how_test_scores_go_as_healing_goes_on",
    "how_sure_rankings_are",
    "what_calibrations_share_with_tests",
    "what_papers_report",
    "where_outputs_were_not_finite",
    "which_gates_are_passed",
    "which_questions_no_score_decides",
    "which_questions_were_cut",
    "which_repairs_hurt",
}
# Questions that measure nothing, or say counts and intervals in a sentence.
LISTS = {
    "which_questions_no_score_decides",
    "which_questions_were_cut",
    "which_plans_were_refused",
}
# Questions whose numbers are counts, means over a few of them, or every sample's own.
COUNTS = {"how_healing_went", "what_a_metric_costs", "what_samples_say_of_layers"}
COUNT_COLUMN = re.compile(r"^n$|^n_|_samples$|^repeats$|^step$|^measured$")
ERROR_COLUMN = re.compile(r"stderr|_low$|^low$|^reach$|_tried$|^spread$|^p_holm$|^best$")


@pytest.fixture(scope="module")
def study_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The tables of a study with four calibrations and two sizes, the larger one healed."""
    return write_study(
        tmp_path_factory.mktemp("study") / "results" / "tables",
        n_layers=6,
        calibrations=("recall", "facts", "hops", "sorting"),
        sizes=(1, 2),
        healed_size=2,
        n_test=60,
    )


@pytest.fixture(scope="module")
def study_views(study_files: list[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    with database.connect_views(study_files) as connection:
        yield connection


@pytest.fixture(scope="module")
def ten_documents(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The base model is right on all ten test documents.

    Removing one layer loses none of them, removing two loses four, and ghost recovers two.
    """
    variants = [
        (variant_key("recall", "accuracy", 1), {"t": np.arange(10) < 10}),
        (variant_key("recall", "accuracy", 2), {"t": np.arange(10) < 6}),
        (variant_key("recall", "accuracy", 2, "ghost"), {"t": np.arange(10) < 8}),
    ]
    selector = dict(model="m", calibration="recall", selector="accuracy")
    plans = [
        selector | dict(removed=1, unit="1", position=1),
        selector | dict(removed=2, unit="1", position=1),
        selector | dict(removed=2, unit="2", position=2),
    ]
    calibration = dict(calibration="recall", source="t", chance_accuracy=0.5)
    folder = tmp_path_factory.mktemp("ten_documents")
    with connect_planted_tables(
        folder, {"t": np.ones(10)}, variants, [calibration], plans=plans
    ) as connection:
        yield connection


def query_tables(files: list[Path], sql: str) -> list[dict[str, Any]]:
    with database.connect_views(files) as connection:
        return answers.query_rows(connection, sql)


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_every_query_begins_with_its_question(query):
    text = query.read_text(encoding="utf-8")

    first_line = text.splitlines()[0]
    assert first_line.startswith("-- ")
    assert first_line.endswith("?")
    assert f"sql/queries/{query.name}" in text


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_every_query_answers_with_sample_counts_and_errors(query, study_views, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the numbers of papers are

    rows = answers.query_rows(study_views, query.read_text(encoding="utf-8"))

    if query.stem in UNANSWERED:
        assert not rows, "the list UNANSWERED is stale"
        return
    assert rows
    has_count = any(COUNT_COLUMN.search(column) for column in rows[0])
    has_error = any(ERROR_COLUMN.search(column) for column in rows[0])
    assert has_count or query.stem in LISTS, "a number needs its sample count"
    assert has_error or query.stem in LISTS | COUNTS, "a number needs its error"


def test_what_pruning_costs_a_task_is_paired_with_the_base_model(ten_documents):
    one_removed, two_removed = answers.answer_question(
        ten_documents, "what_pruning_for_one_task_costs_the_others"
    )

    assert one_removed["removed"] == 1
    assert one_removed["metric"] == "acc_norm"
    assert one_removed["value"] == 1.0
    assert one_removed["change"] == 0.0
    assert two_removed["paired"]
    assert two_removed["change"] == pytest.approx(-0.4)
    # Of ten documents four are lost, and one more differs in each direction.
    variance = (6 / 12 - (4 / 12) ** 2) / 12
    assert two_removed["change_stderr"] == pytest.approx(variance**0.5)
    assert two_removed["kept"] == pytest.approx(0.6)
    assert two_removed["n_samples"] == 10
    assert two_removed["chance"] == 0.5
    # Always right on ten documents is less than four standard errors, √(.25 / 10), above chance.
    assert two_removed["kept_stderr"] is None
    assert two_removed["kept_reason"] == "too few"


def test_a_disagreement_is_confirmed_unless_scores_tie_at_that_rank(tmp_path):
    """Accuracy loses nothing without layer 0, which cosine ranks last; layers 2 and 3 tie."""
    scores = {"accuracy": [0.0, 0.4, 1.0, 1.0], "cosine": [0.9, 0.1, 0.2, 0.3]}
    table_key = dict(
        model="m", calibration="c", selector="base", removed=0, component="layer", n_samples=500
    )
    relevance = []
    for metric, layer_scores in scores.items():
        for layer, score in enumerate(layer_scores):
            unit = dict(metric=metric, unit=str(layer), layer=layer)
            interval = dict(score=score, ci_low=score - 0.02, ci_high=score + 0.02)
            relevance.append(table_key | unit | interval)

    files = write_tables(tmp_path, relevance=relevance)

    rows = query_tables(files, read_query("where_metrics_disagree"))

    row_by_layer = {row["layer"]: row for row in rows}
    assert row_by_layer[0]["rank_difference"] == -3
    assert row_by_layer[0]["confirmed"]
    assert not row_by_layer[3]["confirmed"]


def test_the_model_to_take_is_the_largest_removal_that_keeps_95_percent(ten_documents):
    rows = answers.answer_question(ten_documents, "which_model_to_take")

    [card] = [row for row in rows if row["question"] == "task"]
    assert card["removed"] == 1
    assert card["sizes"] == [1, 2]
    assert card["units"] == "1"
    assert card["kept"] == 1.0
    assert card["kept_above_chance"] == 1.0
    # Ten documents are too few to be certain.
    assert card["certain"] is None
    assert card["kept_reason"] == "too few"


@pytest.fixture(scope="module")
def five_recipes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Five recipes on calibrations x, y and z, not all of them measured on each.

    Selector b has no plan for z; `late` and c were tried on x alone.
    """
    # Accuracy on the own task and perplexity of general text: on x, then y, then z.
    measured = {
        ("a", "none"): [(0.6, 10.0), (0.4, 10.0), (0.0, 99.0)],
        ("a", "ghost"): [(0.8, 40.0), (0.8, 90.0), (1.0, 1.0)],
        ("b", "none"): [(0.4, 20.0), (0.4, 20.0)],
        ("a", "late"): [(0.9, 9.0)],
        ("c", "none"): [(0.9, 9.0)],
    }
    accuracy_row = dict(metric="acc", higher_is_better=True, stderr=0.1, n_samples=10)
    text_row = dict(
        task="text", metric="perplexity", higher_is_better=False, stderr=0.1, n_samples=10
    )
    benchmarks = [BASE_KEY | text_row | dict(value=8.0)]
    benchmarks += [BASE_KEY | accuracy_row | dict(task=task, value=1.0) for task in "xyz"]
    for (selector, repair), scores in measured.items():
        for calibration, (accuracy, perplexity) in zip("xyz", scores, strict=False):
            key = variant_key(calibration, selector, repair=repair)
            benchmarks.append(key | accuracy_row | dict(task=calibration, value=accuracy))
            benchmarks.append(key | text_row | dict(value=perplexity))
    calibrations = [
        dict(model="m", calibration=name, kind="choices", source=name) for name in "xyz"
    ]
    folder = tmp_path_factory.mktemp("five_recipes")
    files = write_tables(folder, benchmarks=benchmarks, calibrations=calibrations)
    with database.connect_views(files) as connection:
        yield connection


def test_the_frontier_compares_means_over_the_same_calibrations(five_recipes):
    """Means over x and y keep six variants; no other set of calibrations keeps more."""
    rows = answers.query_rows(five_recipes, "FROM frontier ORDER BY selector, repair")

    assert [(row["selector"], row["repair"], row["best"]) for row in rows] == [
        ("a", "ghost", True),
        ("a", "none", True),
        ("b", "none", False),
    ]
    assert [row["accuracy"] for row in rows] == pytest.approx([0.8, 0.5, 0.4])
    assert [row["perplexity"] for row in rows] == pytest.approx([60.0, 10.0, 20.0])
    assert rows[0]["accuracy_stderr"] == pytest.approx(0.1 / 2**0.5)
    assert {(row["n_calibrations"], row["n_samples"]) for row in rows} == {(2, 20)}


def test_the_best_repair_depends_on_how_much_general_text_may_lose(five_recipes):
    rows = answers.answer_question(five_recipes, "which_repair_when")

    assert [(row["general_text"], row["repair"], row["lead"]) for row in rows] == [
        ("1.5 x", "none", 0),
        ("any", "ghost", pytest.approx(0.3)),
    ]


def test_own_task_of_a_mixture_is_each_of_its_sources(tmp_path):
    measured = dict(metric="acc", value=0.5, stderr=0.1, n_samples=9, higher_is_better=True)
    benchmarks = [BASE_KEY | measured | dict(task=task) for task in ("a", "b", "c")]
    mixture = dict(
        model="m", calibration="mixture", kind="choices", chance_accuracy=0.3, source="a, b"
    )
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=[mixture])

    rows = query_tables(files, "SELECT task, chance FROM own_tasks ORDER BY task")

    assert rows == [dict(task="a", chance=None), dict(task="b", chance=None)]


def test_own_tasks_of_a_text_are_texts_and_no_task_that_also_has_a_perplexity(tmp_path):
    """As lm-eval's lambada_openai, whose main metric is acc."""
    benchmarks = []
    for task, metric in (("novel", "perplexity"), ("lambada", "perplexity"), ("lambada", "acc")):
        score = dict(task=task, metric=metric, higher_is_better=metric == "acc")
        benchmarks.append(BASE_KEY | score)
    text = dict(model="m", calibration="corpus", kind="text", source="corpus.txt")
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=[text])

    assert query_tables(files, "SELECT task FROM own_tasks") == [dict(task="novel")]


def test_perplexities_are_paired_by_the_nll_of_their_windows(tmp_path):
    base_nll = np.array([1.0, 2.0, 3.0])
    increase = np.array([0.1, 0.2, 0.3])
    variants = [(variant_key("c"), {"text": base_nll + increase})]

    with connect_planted_tables(tmp_path, {"text": base_nll}, variants, []) as connection:
        [score] = answers.query_rows(connection, "FROM scores WHERE removed = 1")

    assert score["paired"]
    assert score["kept"] == pytest.approx(np.exp(-0.2))
    assert score["kept_stderr"] == pytest.approx(np.exp(-0.2) * increase.std(ddof=1) / 3**0.5)


def test_a_variant_has_the_timing_of_its_own_model_without_the_healing(tmp_path):
    """Layers of one model differ in size: plans of one layer do not cost the same."""
    ratios = {"dense": 0.94, "expert": 0.69}
    plans = []
    benchmarks = []
    efficiency = []
    for selector, ratio in ratios.items():
        plans.append(dict(model="m", calibration="c", selector=selector, removed=1, unit="0"))
        key = variant_key("c", selector, 1)
        timed = f"m/c/{selector}/removed=1/none/none"
        efficiency.append(key | dict(parameters_ratio=ratio, latency_ratio=ratio, timed=timed))
        for healing in ("none", "lora"):
            scored = key | dict(healing=healing, task="t", metric="acc", higher_is_better=True)
            benchmarks.append(scored)
    # Another prompt and batch, which the view does not take; and a variant that is only healed.
    efficiency += [row | dict(latency_ratio=0.1, main=False) for row in efficiency]
    efficiency.append(variant_key("c", "healed", 1) | dict(latency_ratio=0.8))
    healed = variant_key("c", "healed", 1) | dict(healing="lora", task="t", metric="acc")
    files = write_tables(
        tmp_path, plans=plans, efficiency=efficiency, benchmarks=[*benchmarks, healed]
    )

    rows = query_tables(files, "SELECT selector, healing, latency_ratio, timed FROM variants")

    assert {(row["selector"], row["healing"]): row["latency_ratio"] for row in rows} == {
        ("dense", "none"): 0.94,
        ("dense", "lora"): 0.94,
        ("expert", "none"): 0.69,
        ("expert", "lora"): 0.69,
        ("healed", "lora"): 0.8,
    }
    assert all(row["timed"] == f"m/c/{row['selector']}/removed=1/none/none" for row in rows)


def test_plans_that_share_a_timing_are_one_row_and_others_are_told_apart(tmp_path):
    layer_by_selector = {"dense": "0", "expert": "1", "other expert": "2"}
    plans = []
    efficiency = []
    for selector, layer in layer_by_selector.items():
        plans.append(dict(model="m", calibration="c", selector=selector, removed=1, unit=layer))
        timed = "dense" if selector == "dense" else "expert"
        row = variant_key("c", selector, 1) | dict(timed=f"m/c/{timed}/removed=1/none/none")
        efficiency.append(row)
    files = write_tables(tmp_path, plans=plans, efficiency=efficiency)

    rows = query_tables(files, "SELECT selector, n_alike FROM distinct_timings ORDER BY selector")

    assert rows == [dict(selector="dense", n_alike=2), dict(selector="expert", n_alike=2)]


@pytest.fixture(scope="module")
def relevance_views(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The views over two tables of a study; another job has written half of a third file."""
    folder = tmp_path_factory.mktemp("relevance")
    files = write_study(folder, n_layers=6, calibrations=("recall",), sizes=(1,), n_test=20)
    (folder / "jobs.parquet").write_bytes(b"half a file")
    opened = [file for file in files if file.stem in ("relevance", "models")]
    with database.connect_views(opened) as connection:
        yield connection


def test_only_the_named_tables_are_opened(relevance_views):
    [[n_disagreements]] = relevance_views.execute("SELECT count(*) FROM disagreements").fetchall()
    views = relevance_views.execute(
        "SELECT view_name FROM duckdb_views() WHERE NOT internal"
    ).fetchall()

    assert n_disagreements > 0
    assert {name for (name,) in views} == {
        "relevance",
        "models",
        "relevance_wide",
        "disagreements",
        "inner_units",
        "task_agreements",
    }


@pytest.mark.parametrize("view", ["plans", "scores", "jobs"])
def test_a_view_of_a_table_that_was_not_named_does_not_exist(relevance_views, view):
    with pytest.raises(duckdb.CatalogException, match=view):
        relevance_views.execute(f"FROM {view}")


@pytest.fixture(scope="module")
def built_database(study_files, tmp_path_factory) -> Iterator[duckdb.DuckDBPyConnection]:
    file = tmp_path_factory.mktemp("database") / "lamina.duckdb"
    database.build_database(study_files, file)
    with duckdb.connect(file, read_only=True) as connection:
        yield connection


def table_comments(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    rows = connection.execute(
        "SELECT table_name, comment FROM duckdb_tables() WHERE schema_name = 'main'"
    ).fetchall()
    return dict(rows)


def column_comments(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], str]:
    rows = connection.execute(
        "SELECT table_name, column_name, comment FROM duckdb_columns()"
        " WHERE schema_name = 'main' AND NOT internal"
    ).fetchall()
    return {(table, column): comment for table, column, comment in rows}


def test_the_database_describes_every_table_and_column(built_database):
    of_tables = table_comments(built_database)
    of_columns = column_comments(built_database)

    assert [table for table, comment in of_tables.items() if not comment] == []
    assert [column for column, comment in of_columns.items() if not comment] == []


def test_tables_and_columns_are_described_as_in_their_schema(built_database):
    of_tables = table_comments(built_database)
    of_columns = column_comments(built_database)

    for table, schema in parquet.TABLES.items():
        assert of_tables[table] == schema.grain
        for column, (_, description) in schema.columns.items():
            assert of_columns[table, column] == description


def test_a_column_that_a_view_passes_on_is_described_as_in_its_table(built_database):
    comments = column_comments(built_database)

    assert comments["disagreements", "accuracy_low"] == comments["relevance_wide", "accuracy_low"]
    assert comments["scores", "stderr"] == comments["benchmarks", "stderr"]


def test_a_database_without_one_of_the_tables_is_refused(study_files, tmp_path):
    without_models = [file for file in study_files if file.stem != "models"]

    with pytest.raises(LaminaError, match=r"no models\.parquet among"):
        database.build_database(without_models, tmp_path / "lamina.duckdb")

    assert list(tmp_path.iterdir()) == []


def gather_rows(folder: Path, table: str, *parts: Path, **groups: str) -> list[dict[str, Any]]:
    """The rows that rule `gather_table` makes of these files."""
    output = folder / f"{table}.parquet"
    part_names = [str(file) for file in parts]
    job = GatherTable(table=table, parts=part_names, groups=groups, output=str(output))
    process = run_in_subprocess(job)
    assert process.returncode == 0, process.stderr
    gathered_table = parquet.read_table(output)
    assert gathered_table.schema.names == parquet.schema_of(table).names
    return gathered_table.to_pylist()


def test_plans_are_gathered_with_refusals(tmp_path):
    plan = dict(
        model="m",
        calibration="c",
        selector="s",
        removed=2,
        metric="accuracy",
        strategy="iterative",
        kind="layer",
    )
    measured = dict(
        units=["7", "3"],
        scores=[0.1, None],
        accuracy_before=[0.9, 0.8],
        accuracy_after=[0.8, 0.7],
        refused=None,
        choice={"member": "block", "repair": "ghost"},
    )
    refused = dict(
        units=[],
        scores=[],
        accuracy_before=None,
        accuracy_after=None,
        refused="take more samples",
        choice={},
    )
    measured_file = tmp_path / "measured.json"
    measured_file.write_text(json.dumps(plan | measured))
    refused_file = tmp_path / "refused.json"
    refused_file.write_text(json.dumps(plan | refused))

    rows = gather_rows(tmp_path, "plans", measured_file, refused_file)

    assert [(row["unit"], row["position"], row["score"]) for row in rows] == [
        ("7", 1, 0.1),
        ("3", 2, None),
        (None, None, None),
    ]
    assert rows[1]["accuracy_after"] == 0.7
    assert rows[2]["refused"] == "take more samples"
    assert [row["repair"] for row in rows] == ["ghost", "ghost", "none"]


def test_calibrations_are_gathered_from_their_metadata(tmp_path):
    description = dict(
        kind="choices",
        n_samples=5,
        n_tokens=80,
        n_cut=1,
        n_undecided=2,
        chance_accuracy=0.25,
        source="t",
        split="train",
        seed=0,
    )
    metadata = {b"lamina.calibration": json.dumps(description).encode()}
    samples = pa.table({"sample": [0]}).replace_schema_metadata(metadata)
    file = tmp_path / "calibrations" / "reference" / "recall.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(samples, file)

    [alone] = gather_rows(tmp_path, "calibrations", file)
    [replicate] = gather_rows(tmp_path, "calibrations", file, recall="draws")

    assert alone == description | dict(
        model="reference",
        calibration="recall",
        replicate_of=None,
        choice_score="acc_norm",
        n_asked=None,
        n_right=None,
        temperature=None,
    )
    assert replicate == alone | dict(replicate_of="draws")


@pytest.fixture(scope="module")
def written_answers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Task t with choices and written answers, task u written; the variant keeps half of each."""
    scores = {
        "t": {"acc": 0.8, "exact_match,written": 0.5, "pass@5": 0.9, "repetition": 0.1},
        "u": {
            "exact_match,strict-match": 0.6,
            "pass@1,strict-match": 0.7,
            "sampled_length": 0.2,
        },
    }
    measured = dict(n_samples=9, higher_is_better=True)
    benchmarks = []
    for task, task_scores in scores.items():
        for metric, value in task_scores.items():
            row = measured | dict(task=task, metric=metric)
            benchmarks.append(BASE_KEY | row | dict(value=value, stderr=0.1))
            benchmarks.append(variant_key("c") | row | dict(value=0.5 * value, stderr=0.05))
    calibration = dict(model="m", calibration="c", kind="choices", source="t")
    folder = tmp_path_factory.mktemp("written_answers")
    files = write_tables(folder, benchmarks=benchmarks, calibrations=[calibration])
    with database.connect_views(files) as connection:
        yield connection


def test_written_answers_are_no_main_metric_of_a_task_with_choices(written_answers):
    rows = answers.query_rows(written_answers, "SELECT DISTINCT task, metric FROM scores")

    assert {row["task"]: row["metric"] for row in rows} == {
        "t": "acc",
        "u": "exact_match,strict-match",
    }
    assert len(rows) == 2


def test_written_answers_are_compared_with_choices(written_answers):
    [row] = answers.query_rows(written_answers, "FROM choices_and_generation WHERE removed = 1")
    sentence = summary.compare_writing_with_choosing(written_answers)[0]

    assert row["task"] == "t"
    assert row["choice"] == 0.4
    assert row["written"] == 0.25
    assert row["choice_kept"] == 0.5
    assert row["written_kept"] == 0.5
    # Independent tests: relative errors add in squares.
    assert row["written_kept_stderr"] == pytest.approx(0.5 * (0.2**2 + 0.2**2) ** 0.5)
    assert sentence.endswith("are written: no repair 50 % and 50 % (n = 1 variants).")

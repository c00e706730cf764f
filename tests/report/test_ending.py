"""The last lines of a run, against the tables that they were made from."""

import io
import re
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest

from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.config.configuration import Report
from lamina_workflow.report import database, ending
from lamina_workflow.report.variant_table import print_variants
from tests.given.planted_tables import connect_planted_tables, variant_key
from tests.given.plausible_tables import write_study, write_tables


def test_the_best_variant_is_a_pruned_one_that_was_measured(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    write_study(tables, n_layers=6, calibrations=("recall", "facts"), sizes=(1, 2), n_test=60)

    best_line, *commands, report_line, database_line = ending.summarise_run(tmp_path)

    variant = Variant.parse(best_line.split()[2])
    benchmarks = parquet.read_table(tables / "benchmarks.parquet")
    measured = benchmarks.select([field.name for field in fields(Variant)]).to_pylist()
    assert asdict(variant) in measured
    assert variant.removed > 0
    assert " % of " in best_line
    assert "documents) without" in best_line
    assert re.search(r" \(A\d+\) keeps ", best_line)
    assert "test questions" in best_line
    assert "±" in best_line
    handle = best_line.split("(")[1].split(")")[0]
    assert commands == [
        f"take it       lamina export {handle}",
        f"try it        lamina chat {handle}",
        f'load it       lamina.load("{variant}")',
    ]
    assert report_line.endswith("report.html")
    assert "lamina.duckdb" in database_line


def test_the_best_variant_loads_where_it_must(tmp_path: Path) -> None:
    """Ghosts are patches with code: llama.cpp has no place for them, and vLLM runs them."""
    write_study(tmp_path / "tables", n_layers=6, calibrations=("recall",), sizes=(1,), n_test=60)

    for_llama = ending.summarise_run(tmp_path, Report(keep=0.5, must_load="llama.cpp"))[0]
    for_vllm = ending.summarise_run(tmp_path, Report(keep=0.5, must_load="vllm"))[0]

    assert "/none/" in for_llama
    assert "/ghost/" in for_vllm


def test_a_run_where_no_variant_was_tested_on_its_task_says_so(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables")

    first_line, *other_lines = ending.summarise_run(tmp_path)

    assert "none was measured on its calibration's task" in first_line
    assert other_lines[0].startswith("report ")


def test_the_best_variant_keeps_what_the_report_asks_for(tmp_path: Path) -> None:
    write_study(tmp_path / "tables", n_layers=6, calibrations=("recall",), sizes=(1, 2), n_test=60)

    best_line, *commands, _, _ = ending.summarise_run(
        tmp_path, Report.model_validate({"keep": "60%"}), " config/mine.yaml"
    )

    assert "removed=2" in best_line
    assert commands[0].endswith(" config/mine.yaml")
    strict_line = ending.summarise_run(tmp_path, Report(keep=1.0))[0]
    assert "none keeps 100 %" in strict_line


def test_a_limit_on_text_that_none_keeps_is_named(tmp_path: Path) -> None:
    write_study(tmp_path / "tables", n_layers=6, calibrations=("recall",), sizes=(1,), n_test=60)

    limits = Report(keep=0.1, general_text=1.0)
    first_line, nearest_line, *_ = ending.summarise_run(tmp_path, limits)

    assert "none keeps 10 % " in first_line
    assert "at 1 times the perplexity of text or less" in first_line
    assert "at most 1 is allowed" in nearest_line


def test_a_share_without_an_interval_competes_with_certain_ones(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    write_study(tables, n_layers=6, calibrations=("recall", "facts"), sizes=(1, 2), n_test=60)
    path = tables / "benchmarks.parquet"
    rows = parquet.read_table(path).to_pylist()
    for row in rows:
        if "facts" in row["task"] and row["metric"].startswith("acc"):
            row["value"] = 0.4  # above chance, but by less than four standard errors
    parquet.write_table(path, parquet.from_rows("benchmarks", rows))
    with database.connect_views(sorted(tables.glob("*.parquet"))) as connection:
        reasons = connection.execute("SELECT DISTINCT kept_reason FROM against_base").fetchall()

    best_line = ending.summarise_run(tmp_path, Report(keep=0.5))[0]

    assert {("too few",), (None,)} <= set(reasons)
    assert "/recall/" in best_line


def test_where_none_keeps_enough_the_nearest_is_named_with_its_commands(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    write_study(tables, n_layers=6, calibrations=("recall",), sizes=(1, 2), n_test=60)

    first_line, nearest_line, *commands, _, _ = ending.summarise_run(tmp_path, Report(keep=1.0))

    assert "none keeps 100 %" in first_line
    assert nearest_line.startswith("nearest ")
    with database.connect_views(sorted(tables.glob("*.parquet"))) as connection:
        most = connection.execute(
            "SELECT max(own_kept) FROM variants WHERE removed > 0 AND healing = 'none'"
        ).fetchall()[0][0]
    assert f"keeps {100 * most:.1f} ± " in nearest_line
    assert commands[0].startswith("take it ")


def test_without_a_base_model_above_chance_text_names_a_variant_or_nothing_does(
    tmp_path: Path,
) -> None:
    tables = tmp_path / "tables"
    write_study(tables, n_layers=6, calibrations=("recall",), sizes=(1, 2), n_test=60)
    path = tables / "benchmarks.parquet"
    rows = parquet.read_table(path).to_pylist()
    for row in rows:
        if row["selector"] == "none" and row["metric"].startswith("acc"):
            row["value"] = 0.25  # chance
    parquet.write_table(path, parquet.from_rows("benchmarks", rows))

    first_line, text_line, *_ = ending.summarise_run(tmp_path)
    without_text = [row for row in rows if row["metric"] in ("acc", "acc_norm")]
    parquet.write_table(path, parquet.from_rows("benchmarks", without_text))
    lines_without_text = ending.summarise_run(tmp_path)

    assert "no test shows which keeps 95 %" in first_line
    assert text_line.startswith("best on text ")
    with database.connect_views(sorted(tables.glob("*.parquet"))) as connection:
        assert connection.execute("SELECT count(text_ratio) FROM variants").fetchall() == [(0,)]
    assert lines_without_text[1].startswith("warning ")
    assert "keeps" not in lines_without_text[2]


def test_new_questions_that_were_judged_stand_beside_the_base_model(tmp_path: Path) -> None:
    write_study(tmp_path / "tables", n_layers=6, calibrations=("recall",), sizes=(1,), n_test=60)
    variant = "reference/recall/accuracy/removed=1/none/none"
    answers = {"base": [1.0] * 70 + [0.0] * 30, "pruned": [1.0] * 60 + [0.0] * 40}
    judgement = {"questions": "new.jsonl", "variant": variant, "metric": "acc", "chance": 0.25}
    judgement["made_from"] = []
    parquet.write_json(tmp_path / "judged" / variant / "1.json", judgement | answers)

    lines = ending.summarise_run(tmp_path)

    [judged_line] = [line for line in lines if line.startswith("judged ")]
    assert "on the 100 new questions of new.jsonl: 60.0 % [" in judged_line
    assert "base model 70.0 % [" in judged_line
    assert "difference -10.0 points [" in judged_line
    assert "Keeps 95 % of the base model's score: no, it keeps 85.7 % [" in judged_line


def test_exports_that_become_larger_than_their_gguf_file_are_named(tmp_path: Path) -> None:
    packed = tmp_path / "small.gguf"
    packed.write_bytes(bytes(2_500_000))
    models = {
        "packed": {"source": str(packed)},
        "hub": {"source": "a/b"},
        "gone": {"source": "x.gguf"},
    }

    [line] = ending.describe_packed_sources(models)

    assert line.startswith("size          small.gguf packs the base model into 2.5 MB, and ")


def test_handles_and_numbers_survive_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path, n_layers=6, calibrations=("recall",), sizes=(1,), n_test=60)
    whole_words = " ".join(list_table_lines(tmp_path)).split()
    monkeypatch.setattr("lamina_workflow.report.variant_table.FILE_WIDTH", 80)

    table_lines = list_table_lines(tmp_path)

    assert max(map(len, table_lines)) <= 80
    assert "…" not in "".join(table_lines)
    numbers = {
        word for word in whole_words if re.fullmatch(r"[\[×]?[\d.,]+[\],]?|[A-Z]\d+\w*", word)
    }
    assert len(numbers) > 20
    assert numbers <= set(" ".join(table_lines).split())


def list_table_lines(tables: Path) -> list[str]:
    """The lines that are printed before the note."""
    return print_table(tables).partition("weights: ")[0].splitlines()


def print_table(tables: Path) -> str:
    output = io.StringIO()
    with database.connect_views(sorted(tables.glob("*.parquet"))) as connection:
        print_variants(connection, output)
    return output.getvalue()


def test_a_small_study_ends_in_a_table_of_its_variants(tmp_path: Path) -> None:
    write_study(tmp_path, n_layers=6, calibrations=("recall",), sizes=(1,), n_test=60)
    file = tmp_path / "efficiency.parquet"
    timed = parquet.read_table(file).to_pylist()

    lines = print_table(tmp_path).splitlines()

    (base_line,) = [line for line in lines if line.strip().startswith("base model")]
    assert base_line.split()[2] == "6"
    assert "–" not in base_line.split()[3:7]  # parameters and weights
    variant_lines = [line for line in lines if "removed=1" in line]
    assert len(variant_lines) == 10
    for line in variant_lines:
        assert line.split()[2] == "5"  # layers, after the handle and the name
        assert " ± " in line
        assert " 60 " in line  # test questions
    ratio = timed[0]["tokens_per_second_ratio"]
    assert any(f"× {ratio:.2f} [" in line for line in variant_lines)


def test_the_mean_of_two_tasks_has_the_interval_of_a_mean(tmp_path: Path) -> None:
    """40 questions at .5 and 4,000 at .9 are not 4,040 at .7."""
    answers = {"few": np.arange(40) < 20, "many": np.arange(4000) < 3600}
    calibrations = [
        {"calibration": "c", "source": "few"},
        {"calibration": "c", "source": "many"},
    ]
    variants = [(variant_key("c"), answers)]
    connection = connect_planted_tables(tmp_path, answers, variants, calibrations)
    connection.close()

    lines = print_table(tmp_path).splitlines()

    (variant_line,) = [line for line in lines if "removed=1" in line]
    stderr = np.hypot(0.5 / np.sqrt(39), 0.3 / np.sqrt(3999)) / 2
    assert f" 0.700 ± {1.96 * stderr:.3f} " in variant_line


def test_a_large_study_is_left_to_its_report(tmp_path: Path) -> None:
    write_study(tmp_path, n_layers=6, calibrations=("recall",), sizes=(1, 2), n_test=60)
    assert print_table(tmp_path) == ""


def test_a_base_model_that_guesses_is_named(tmp_path: Path) -> None:
    """Of two tasks with four choices, the base model knows one and guesses at the other."""
    rng = np.random.default_rng(3)
    known = (rng.random(400) < 0.9).astype(float)
    guessed = (rng.random(400) < 0.25).astype(float)
    pruned = {"known": known * (rng.random(400) < 0.5), "guessed": guessed}
    variants = [(variant_key("c"), pruned), (variant_key("d"), pruned)]
    calibrations = [
        {"calibration": "c", "source": "known"},
        {"calibration": "d", "source": "guessed"},
    ]
    base = {"known": known, "guessed": guessed}
    connect_planted_tables(tmp_path / "tables", base, variants, calibrations).close()

    lines = ending.summarise_run(tmp_path)

    [warning] = [line for line in lines if line.startswith("warning")]
    assert "above chance: m on d (n = 400). " in warning


def test_a_study_that_prunes_nothing_names_the_layers_that_can_go(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    write_study(tables, n_layers=6, calibrations=("recall",), sizes=(1,), n_test=60)
    for name in ("benchmarks", "benchmark_samples", "plans", "patches", "efficiency"):
        file = tables / f"{name}.parquet"
        parquet.write_table(file, parquet.read_table(file).slice(0, 0))

    layer_line, report_line, _ = ending.summarise_run(tmp_path)

    relevance = [
        row
        for row in parquet.read_table(tables / "relevance.parquet").to_pylist()
        if (row["metric"], row["component"], row["selector"]) == ("accuracy", "layer", "base")
    ]
    removable = [row for row in relevance if row["ci_low"] <= 0]
    removable.sort(key=lambda row: (row["score"], -row["layer"]))
    layers = ", ".join(str(row["layer"]) for row in removable[:5]) or "none"
    assert f"on recall: {layers}" in layer_line
    assert f"of {len(relevance)} layers can be removed" in layer_line
    assert report_line.startswith("report")

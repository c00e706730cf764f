"""What moved between two results folders: planted changes are found, and next to nothing else."""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lamina.store import parquet
from lamina_workflow.report import compare
from lamina_workflow.report.paired_tests import correct_by_holm

N_DOCUMENTS = 200
VARIANT = dict(
    model="m",
    calibration="recall",
    selector="accuracy",
    repair="none",
    healing="none",
    task="recall",
)


def relevance_row(layer: int, score: float) -> dict[str, Any]:
    return dict(
        model="m",
        calibration="recall",
        selector="base",
        removed=0,
        metric="cosine",
        component="layer",
        unit=str(layer),
        layer=layer,
        score=score,
        ci_low=score - 0.02,
        ci_high=score + 0.02,
        n_samples=50,
    )


def write_folder(
    folder: Path, answers: np.ndarray, documents: str = "", scores: tuple[float, ...] = ()
) -> Path:
    """A results folder whose variant `removed=i + 1` is right on document j where answers[i, j].

    Two folders with the same `documents` share them, so that their answers are paired.
    """
    benchmarks: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for removed, right in enumerate(answers.astype(float), start=1):
        key = VARIANT | dict(removed=removed, metric="acc")
        benchmarks.append(
            key
            | dict(
                value=float(right.mean()),
                stderr=float(right.std(ddof=1) / len(right) ** 0.5),
                n_samples=len(right),
                n_shot=0,
                higher_is_better=True,
                task_version="1",
            )
        )
        for sample, value in enumerate(right.tolist()):
            samples.append({**key, "sample": sample, "value": value})
    relevance = [relevance_row(layer, score) for layer, score in enumerate(scores)]
    tables = dict(benchmarks=benchmarks, benchmark_samples=samples, relevance=relevance)
    for table, rows in tables.items():
        parquet.write_table(folder / f"tables/{table}.parquet", parquet.from_rows(table, rows))
    if documents:
        names = [f"{documents}{index}" for index in range(N_DOCUMENTS)]
        parquet.write_table(folder / "tasks/recall.parquet", pa.table({"document": names}))
    return folder


def draw_answers(n_variants: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The answers of two runs; the second draws those to a tenth of the documents again."""
    rng = np.random.default_rng(seed)
    shape = (n_variants, N_DOCUMENTS)
    first = rng.random(shape) < 0.8
    redrawn = rng.random(shape) < 0.8
    is_redrawn = rng.random(shape) < 0.1
    return first, np.where(is_redrawn, redrawn, first)


def number_name(removed: int) -> str:
    return f"m/recall/accuracy/removed={removed}/none/none/recall"


def benchmarks_by_size(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The compared benchmarks in the order of their number of removed units."""
    rows = [row for row in comparisons if row["table"] == "benchmarks"]
    row_by_name = {row["number"]: row for row in rows}
    return [row_by_name[number_name(removed)] for removed in range(1, len(rows) + 1)]


def test_what_was_planted_is_found_and_nothing_else(tmp_path: Path) -> None:
    first, second = draw_answers(20)
    second[4, np.flatnonzero(second[4])[:25]] = False
    second[9] = True
    first_folder = write_folder(tmp_path / "a", first, "x", (0.1, 0.5))
    second_folder = write_folder(tmp_path / "b", second, "x", (0.3, 0.51))

    comparisons = list(compare.compare_folders(first_folder, second_folder))

    moved = {row["number"]: row for row in comparisons if row["moved"]}
    assert moved.keys() == {number_name(5), number_name(10), "m/recall/layer/0"}
    assert moved[number_name(5)]["better"] is False
    assert moved[number_name(10)]["better"] is True
    assert moved["m/recall/layer/0"]["better"] is None
    assert not moved["m/recall/layer/0"]["paired"]
    first_line = list(compare.summarise_comparisons(comparisons))[0]
    assert first_line.startswith("benchmarks: 2 of 20 numbers moved (1 better, 1 worse); 20 were")


def test_answers_to_the_same_documents_are_paired(tmp_path: Path) -> None:
    first, second = draw_answers(20)
    first_folder = write_folder(tmp_path / "a", first, "x")
    second_folder = write_folder(tmp_path / "b", second, "x")

    comparisons = list(compare.compare_folders(first_folder, second_folder))

    for index, row in enumerate(benchmarks_by_size(comparisons)):
        assert row["paired"]
        assert row["n_samples"] == N_DOCUMENTS
        assert row["difference"] == pytest.approx(second[index].mean() - first[index].mean())
        assert row["ci_low"] <= row["difference"] <= row["ci_high"]
        if row["difference"] == pytest.approx(0):
            assert row["p_value"] == pytest.approx(1)


@pytest.mark.parametrize("paired", [True, False])
def test_where_nothing_moved_one_run_in_twenty_says_so_at_most(
    tmp_path: Path, paired: bool
) -> None:
    """40 pairs of runs of 12 numbers: p < 0.05 in 1 of 20, and after Holm in few runs."""
    first, second = draw_answers(480, seed=1)
    if not paired:
        second = np.random.default_rng(2).random(second.shape) < 0.8
    first_folder = write_folder(tmp_path / "a", first, "x")
    second_folder = write_folder(tmp_path / "b", second, "x" if paired else "y")

    comparisons = list(compare.compare_folders(first_folder, second_folder))

    assert {row["paired"] for row in comparisons} == {paired}
    p_values = np.array([row["p_value"] for row in benchmarks_by_size(comparisons)])
    assert (p_values < 0.05).mean() <= 0.08
    smallest = [min(correct_by_holm(run)) for run in p_values.reshape(40, 12)]
    # Two runs are expected; more than six happen once in 300.
    assert sum(p_value < compare.LEVEL for p_value in smallest) <= 6


def test_the_command_prints_what_moved_and_writes_three_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = draw_answers(3)
    second[1] = ~first[1]
    first_folder = write_folder(tmp_path / "a", first)
    second_folder = write_folder(tmp_path / "b", second)
    output = str(tmp_path / "out/compare")
    arguments = ["compare", str(first_folder), str(second_folder), "--output", output]
    monkeypatch.setattr(sys, "argv", arguments)

    compare.main()

    printed = capsys.readouterr().out
    assert "1 of 3 numbers moved (0 better, 1 worse)" in printed
    assert "removed=2/none/none/recall acc:" in printed
    with (tmp_path / "out/compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["moved"] for row in rows] == ["True", "False", "False"]
    page = (tmp_path / "out/compare.html").read_text()
    assert "<svg" in page
    assert "removed=2" in page
    assert "removed=1" not in page
    assert (tmp_path / "out/compare.svg").read_text().lstrip().startswith("<?xml")


def test_a_run_compared_with_itself_says_that_nothing_could_move(tmp_path: Path) -> None:
    first, _ = draw_answers(3)
    folder = write_folder(tmp_path / "a", first, "x", (0.1,))

    lines = list(compare.summarise_comparisons(compare.compare_folders(folder, folder)))

    assert lines[0] == "A and B hold the same 4 numbers, so nothing could move"


def test_two_runs_that_differ_are_not_said_to_hold_the_same_numbers(tmp_path: Path) -> None:
    first, second = draw_answers(3)
    first_folder = write_folder(tmp_path / "a", first, "x", (0.1,))
    second_folder = write_folder(tmp_path / "b", second, "x", (0.1,))

    comparisons = compare.compare_folders(first_folder, second_folder)

    assert not any(
        line.startswith("A and B") for line in compare.summarise_comparisons(comparisons)
    )


def test_equal_answers_have_the_interval_of_one_more_document_either_way(tmp_path: Path) -> None:
    """The mean of N + 2 differences of which one is +1 and one -1."""
    first, _ = draw_answers(3)
    folder = write_folder(tmp_path / "a", first, "x")

    rows = list(compare.compare_folders(folder, folder))

    reach = 1.96 * 2**0.5 / (N_DOCUMENTS + 2)
    assert len(rows) == 3
    for row in rows:
        assert row["ci_high"] == pytest.approx(reach, rel=0.02)
        assert row["ci_low"] == -row["ci_high"]


def test_equal_scores_have_the_interval_of_two_independent_ones(tmp_path: Path) -> None:
    first, _ = draw_answers(1)
    folder = write_folder(tmp_path / "a", first, scores=(0.1,))

    comparisons = compare.compare_folders(folder, folder)

    [row] = [row for row in comparisons if row["table"] == "relevance"]
    assert row["ci_high"] == pytest.approx(2**0.5 * 0.02, rel=0.02)
    assert row["ci_low"] == -row["ci_high"]


def test_a_folder_is_read_by_its_own_name_and_not_as_a_pattern(tmp_path: Path) -> None:
    first, second = draw_answers(1)
    write_folder(tmp_path / "run1", second)
    folder = write_folder(tmp_path / "run[1]", first)

    rows = list(compare.compare_folders(folder, folder))

    assert [row["a"] for row in rows] == [pytest.approx(first.mean())]
    assert first.mean() != second.mean()

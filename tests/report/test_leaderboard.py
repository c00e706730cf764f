"""Variants of several runs in one page: every score has its interval and count, and sorts."""

import subprocess
import sys
from os import environ
from pathlib import Path

import pytest

from lamina_workflow.report import database, leaderboard
from tests import ROOT
from tests.given.plausible_tables import write_study


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The results folders of two runs on models of other names."""
    root = tmp_path_factory.mktemp("runs")
    folders: list[str] = []
    for model in ("small", "large"):
        folder = root / model / "results"
        tables = write_study(
            root / f"{model}_tables",
            n_layers=6,
            calibrations=("recall", "facts"),
            sizes=(1, 2),
            n_test=40,
            models=(model,),
        )
        database.build_database(tables, folder / "lamina.duckdb", "mine")
        folders.append(str(folder))
    return folders


def test_a_page_holds_every_variant_of_every_run(runs: list[str], tmp_path: Path) -> None:
    page_file = tmp_path / "leaderboard.html"
    command = [sys.executable, "-P", "-m", "lamina_workflow.report.leaderboard", *runs]
    command += ["--output", str(page_file)]
    environment = environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)

    page = page_file.read_text()
    variants = leaderboard.read_variants(runs)
    assert {row["model"] for row in variants} == {"small", "large"}
    for row in variants:
        assert f"<td>{row['run']}</td>" in page
        assert f"<code>{row['variant']}</code>" in page
    assert "http" not in page


def test_a_score_has_its_interval_and_count(runs: list[str]) -> None:
    (row, *_) = leaderboard.read_variants(runs[:1])

    page = leaderboard.render_leaderboard([row], n_runs=1)
    half_width = 1.96 * row["own_stderr"]
    assert f"{row['own_value']:.3f} ± {half_width:.3f}" in page
    assert f'<td class="n">{row["own_samples"]}</td>' in page


def test_a_file_stands_for_its_folder(runs: list[str]) -> None:
    (of_folder, *_) = leaderboard.read_variants(runs[:1])
    (of_file, *_) = leaderboard.read_variants([f"{runs[0]}/lamina.duckdb"])

    assert of_file == of_folder | {"run": f"{runs[0]}/lamina.duckdb"}

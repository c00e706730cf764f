"""`lamina prune`, from files of a user to the ending: its numbers are those of Snakemake's own run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lamina.paths import PROJECT
from tests import ROOT
from tools.golden import TABLES_ASIDE, hashed, rows

pytestmark = pytest.mark.slow

REFERENCE = ROOT / "resources/reference"
N_QUESTIONS = 60


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder; its output is standard output and error together."""
    process = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.returncode == 0, process.stdout[-6000:]
    return process.stdout


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, questions and text, in which `lamina prune` has run."""
    folder = tmp_path_factory.mktemp("workplace")
    lines = (REFERENCE / "data/facts_validation.jsonl").read_text("utf-8").splitlines()
    (folder / "support.jsonl").write_text("\n".join(lines[:N_QUESTIONS]), encoding="utf-8")
    records = (REFERENCE / "data/corpus_validation.jsonl").read_text("utf-8").splitlines()
    documents = [json.loads(line)["text"].replace("\n\n", "\n") for line in records[:60]]
    (folder / "book.txt").write_text("\n\n".join(documents), encoding="utf-8")
    arguments = ("--questions", "support.jsonl", "--text", "book.txt", "--folder", "study")
    output = run(folder, "lamina_workflow", "prune", str(REFERENCE), *arguments)
    (folder / "output.txt").write_text(output, encoding="utf-8")
    return folder


def test_it_ends_in_a_table_and_a_variant_to_take(workplace: Path) -> None:
    output = (workplace / "output.txt").read_text(encoding="utf-8")

    assert "Of 60 questions, 36 choose layers and fit repairs, and 24 others test" in output
    assert "profiles/default for setting default command line arguments" in output
    assert "base model" in output
    assert "take it       lamina export A" in output
    assert output.rstrip().endswith("cd study")


def test_its_tables_are_those_of_a_run_with_the_configuration_that_it_wrote(
    workplace: Path, tmp_path: Path
) -> None:
    study = workplace / "study"
    for file in (study / "config.yaml", *study.glob("*.jsonl")):
        shutil.copy(file, tmp_path)

    snakefile = str(PROJECT / "workflow/Snakefile")
    run(
        tmp_path,
        "snakemake",
        "--snakefile",
        snakefile,
        "--configfile",
        "config.yaml",
        "--cores",
        "all",
    )

    tables = sorted(path.stem for path in (study / "results/tables").glob("*.parquet"))
    assert "benchmarks" in tables
    for name in set(tables) - TABLES_ASIDE:
        written, again = (
            sorted(map(hashed, rows(folder / f"results/tables/{name}.parquet", ())))
            for folder in (study, tmp_path)
        )
        assert written == again, name
    assert pq.read_metadata(study / "results/tables/benchmarks.parquet").num_rows > 0

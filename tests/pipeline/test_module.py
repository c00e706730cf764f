"""Another workflow, in a folder of its own, uses lamina as a module, as snakedeploy sets it up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.store import parquet
from tests import ROOT

pytestmark = pytest.mark.slow

SNAKEFILE = """
configfile: "config/config.yaml"

module lamina:
    snakefile:
        "{root}/Snakefile"
    config:
        config

use rule * from lamina
"""
CONFIG = """
models:
  mine: {{source: {root}/resources/reference, dtype: float32}}
calibrations:
  own: {{choices: questions.jsonl}}
selectors:
  accuracy: {{metric: accuracy, strategy: one_shot}}
repairs:
  ghost: {{method: ghost}}
benchmarks:
  tasks:
    test: {{choices: test.jsonl}}
studies:
  prune:
    models: [mine]
    calibrations: [own]
    selectors: [accuracy]
    removed: [1]
    repairs: [none, ghost]
"""


def test_a_workflow_in_another_folder_uses_lamina_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(root=ROOT))
    (tmp_path / "config/config.yaml").write_text(CONFIG.format(root=ROOT))
    questions = (ROOT / "resources/reference/data/facts_validation.jsonl").read_text().splitlines()
    (tmp_path / "questions.jsonl").write_text("\n".join(questions[:60]))
    (tmp_path / "test.jsonl").write_text("\n".join(questions[-60:]))

    run = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2", "--quiet", "all"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr[-3000:]
    assert "own" in (tmp_path / "results/report.html").read_text()
    benchmarks = parquet.read_table(tmp_path / "results/tables/benchmarks.parquet")
    assert {"none", "ghost"} <= set(benchmarks["repair"].to_pylist())

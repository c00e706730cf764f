"""`lamina paper` from the command line: one study of a paper on the embedded model, to its table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

pytestmark = pytest.mark.slow

REFERENCE = ROOT / "resources/reference"


def test_a_paper_in_small_ends_in_its_numbers_beside_ours(tmp_path: Path) -> None:
    """Tables 2 and 4 of arXiv 2605.15491 print .6001 for ghost on 7 layers of Llama-3.1-8B."""
    command = [sys.executable, "-P", "-m", "lamina_workflow.cli", "paper", "ghosted-layers"]
    command += ["--study", "ridge", "--small", str(REFERENCE), "--data", str(REFERENCE / "data")]
    command += ["--samples", "4", "--cores", "2", "--folder", "study"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}

    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    rows = [line.split() for line in process.stdout.splitlines() if " 0.6001 " in line]
    assert [row[0] for row in rows] == ["2", "4"]
    for row in rows:
        assert row[1:5] == ["c4", "streamline", "2", "ghost"]
        assert float(row[6]) >= 0  # ours, beside what is published

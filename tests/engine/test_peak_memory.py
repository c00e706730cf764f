"""What a stage takes at its peak, by the kernel's count, against what `make plan` and `mem_mb` say of it.

The recommended strategy is tried: sets of several sizes, each bare and with a repair, judged by questions and by texts.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT

MOST = 1.2  # times what was said


def environment_of_jobs() -> dict[str, str]:
    """The environment that the rules give to every job."""
    pretended = SimpleNamespace(environ=dict(os.environ))
    rules = (ROOT / "rules/common.smk").read_text(encoding="utf-8")
    for statement in re.findall(
        r"^os\.environ(?:.*\)|.*\(\n(?:    .*\n)*\))$", rules, re.MULTILINE
    ):
        exec(statement, {"os": pretended, "ROOT": ROOT})
    return dict(pretended.environ)


def measured(shape: str, stage: str, *more: str) -> dict[str, Any]:
    """A stage in a process of its own, which has nothing of what tests before it have left in memory."""
    script = Path("benchmarks/memory.py")
    command = [sys.executable, str(ROOT / script), "--here", "--shape", shape, "--stages", stage]
    done = subprocess.run(
        [*command, *more],
        env=environment_of_jobs() | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def test_a_search_over_a_large_vocabulary_needs_what_was_planned() -> None:
    """262,144 tokens: all logits of one text and its sets at once would take 2.5 GB."""
    row = measured("slim", "search")
    assert row["of_plan"] <= MOST
    assert row["of_mem_mb"] <= MOST


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", ["capture", "sweep", "search", "fit", "heal", "benchmark", "perplexity"]
)
def test_a_model_of_the_shape_of_gemma_needs_what_was_planned(stage: str) -> None:
    """18 layers x 640 and 262,144 tokens: 1.1 GB of weights, with which a search once took 16 GB."""
    row = measured("gemma", stage)
    assert row["of_plan"] <= MOST
    assert row["of_mem_mb"] <= MOST


@pytest.mark.slow
def test_more_texts_need_no_more_memory() -> None:
    few, many = (measured("slim", "search", "--texts", texts) for texts in ("4", "16"))
    assert many["peak_bytes"] <= 1.1 * few["peak_bytes"]

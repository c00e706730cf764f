"""The peak of a stage, by the kernel's count, against what `make plan` and `mem_mb` say of it.

Searches are the recommended ones: sets of several sizes, each bare and repaired, judged by
questions and by texts.
"""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT

MARGIN = 1.2
"""The largest peak, as a multiple of what was planned."""


STATEMENT = re.compile(
    r"""^os\.environ(?:
        .*\)                         # on one line
        | .*\(\n(?:[ ]{4}.*\n)*\)    # on several lines
    )$""",
    re.MULTILINE | re.VERBOSE,
)
"""A statement about the environment in the rules."""


def job_environment() -> dict[str, str]:
    """The environment that the rules give to every job."""
    rules = (ROOT / "rules/common.smk").read_text(encoding="utf-8")
    os_of_rules = SimpleNamespace(environ=dict(os.environ))
    for statement in STATEMENT.findall(rules):
        exec(statement, {"os": os_of_rules, "ROOT": ROOT})
    assert os_of_rules.environ["TOKENIZERS_PARALLELISM"] == "false"
    return dict(os_of_rules.environ)


def measure_stage(shape: str, stage: str, *options: str) -> dict[str, Any]:
    """Measure a stage in a process of its own, which has nothing of other tests in memory."""
    script = str(ROOT / "benchmarks/memory.py")
    command = [sys.executable, script, "--here", "--shape", shape, "--stages", stage, *options]
    environment = job_environment() | {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return row


def assert_as_planned(row: dict[str, Any]) -> None:
    assert row["of_plan"] <= MARGIN
    assert row["of_mem_mb"] <= MARGIN


@pytest.mark.slow
def test_a_search_over_a_large_vocabulary_needs_what_was_planned() -> None:
    """262,144 tokens: all logits of one text and its sets at once would take 2.5 GB."""
    assert_as_planned(measure_stage("slim", "search"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", ["capture", "sweep", "search", "fit", "heal", "benchmark", "perplexity"]
)
def test_a_model_of_the_shape_of_gemma_needs_what_was_planned(stage: str) -> None:
    """18 layers x 640 and 262,144 tokens: 1.1 GB of weights."""
    assert_as_planned(measure_stage("gemma", stage))


@pytest.mark.slow
def test_more_texts_need_no_more_memory() -> None:
    row_of_4 = measure_stage("slim", "search", "--texts", "4")
    row_of_16 = measure_stage("slim", "search", "--texts", "16")

    assert row_of_16["peak_bytes"] <= 1.1 * row_of_4["peak_bytes"]

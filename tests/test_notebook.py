"""The library in a notebook: the example runs, `lamina.sweep` gives a job's numbers and refuses the rest."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lamina
import lamina_workflow
from lamina import notebook
from lamina.data.calibrations import chance_accuracy
from lamina.engine import sweep
from lamina.errors import LaminaError
from lamina.models.units import all_units
from lamina.options.metrics import METRICS
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.store import parquet
from lamina_workflow.report import database
from tests.given import tiny
from tests.given.plausible_tables import VIEWS, write_study

ROOT = Path(__file__).parents[1]
W = tiny.WORDS
QUESTIONS = [
    (f"{W[n]} {W[n + 1]}", [W[n + 2], f"{W[n + 3]} {W[n]}", W[n + 4]], n % 3) for n in range(6)
]
TEXTS = [" ".join(W[n : n + 4 + n % 2]) for n in range(6)]


@pytest.mark.parametrize("after_a_study", [False, True])
def test_the_example_runs_in_a_folder_of_its_own(tmp_path: Path, after_a_study: bool) -> None:
    if after_a_study:
        made = write_study(
            tmp_path / "made", n_layers=6, calibrations=("facts", "recall"), sizes=(1,)
        )
        database.build_database(VIEWS, made, tmp_path / "results/lamina.duckdb")
    shutil.copytree(ROOT / "resources/reference", tmp_path / "resources/reference")
    notebook = json.loads((ROOT / "docs/example.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    (tmp_path / "example.py").write_text(
        "\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8"
    )
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": "",
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "example.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len([line for line in ran.stdout.splitlines() if line.startswith("layer")]) == 12
    assert ("calibration" in ran.stdout) == after_a_study


def test_importing_the_library_loads_no_torch() -> None:
    code = (
        "import lamina, lamina_workflow, sys; "
        "print(*sorted({'torch', 'transformers', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    )
    environment = {"PYTHONPATH": str(ROOT / "src")}
    assert (
        subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip()
        == ""
    )


@pytest.mark.parametrize("samples", [QUESTIONS, TEXTS])
@pytest.mark.parametrize("units", ["layer", "mlp"])
def test_a_sweep_in_a_notebook_has_the_numbers_of_a_job(samples: list[Any], units: str) -> None:
    model, metrics = tiny.model().train(), ("perplexity", "cosine")
    table = lamina.sweep(model, tiny.tokenizer(), samples, units, metrics)
    assert model.training and {row["metric"] for row in table.to_pylist()} == set(metrics)
    assert table["unit"].to_pylist() == 2 * all_units(5, units)
    read = notebook._tokenise(model, tiny.tokenizer(), samples, 256)
    model.eval()
    rows = sweep.sweep_units(model, read, all_units(5, units)).rows(["none", *all_units(5, units)])
    context = Context(chance_accuracy(read, model.config.vocab_size))
    wanted = score_sweep(parquet.from_rows("sweeps", rows), metrics, context, 0)
    assert table["rank"].to_pylist() == [row["rank"] for row in wanted]
    assert table["score"].to_pylist() == pytest.approx(
        [row["score"] for row in wanted], rel=1e-4, abs=1e-6
    )


def test_every_metric_can_be_asked_for() -> None:
    table = lamina.sweep(tiny.model(), tiny.tokenizer(), QUESTIONS, metrics=list(METRICS))
    assert {row["metric"] for row in table.to_pylist()} == set(METRICS)


@pytest.mark.parametrize(
    ("samples", "options", "told"),
    [
        ([], {}, "at least one"),
        (["t1 t2", QUESTIONS[0]], {}, "questions .* or texts"),
        ([("t1", ["t2", "t3"], 2)], {}, "number 0 is not a question"),
        ([("t1", ["t2", "t3"], "t2")], {}, "number 0 is not a question"),
        ([("t1", "t2")], {}, "number 0 is not a question"),
        (QUESTIONS, {"units": "head"}, "units: 'head'.*layer, attention, mlp"),
        (QUESTIONS, {"metrics": ["perplexty"]}, "metrics: 'perplexty'.*perplexity"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    samples: list[Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(LaminaError, match=told):
        lamina.sweep(tiny.model(), tiny.tokenizer(), samples, **options)


def test_results_need_a_run(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="make run"):
        lamina_workflow.results(tmp_path)

"""The library in a notebook: the example runs, and `lamina.sweep` has the numbers of a job."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lamina
import lamina_workflow
from lamina.data.calibrations import CalibrationSamples, chance_accuracy
from lamina.data.prepare import prepare_calibration
from lamina.engine import sweep
from lamina.errors import LaminaError
from lamina.models.manifest import describe_model
from lamina.models.units import all_units
from lamina.options.calibrations import Calibration
from lamina.options.metrics import METRICS
from lamina.options.models import Model
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.store import parquet
from lamina_workflow.report import database
from tests import ROOT
from tests.cases.plain import choice_log_likelihood
from tests.given import tiny
from tests.given.cut_models import cut
from tests.given.plausible_tables import write_study

METRIC_NAMES = ("perplexity", "cosine")
WORDS = tiny.WORDS


def make_question(index: int) -> tuple[str, list[str], int]:
    """A query, three choices and the index of the right one."""
    query = f"{WORDS[index]} {WORDS[index + 1]}"
    choices = [WORDS[index + 2], f"{WORDS[index + 3]} {WORDS[index]}", WORDS[index + 4]]
    return query, choices, index % 3


def make_text(index: int) -> str:
    n_words = 4 + index % 2
    return " ".join(WORDS[index : index + n_words])


QUESTIONS = [make_question(index) for index in range(6)]
TEXTS = [make_text(index) for index in range(6)]


@pytest.fixture
def example_folder(tmp_path: Path) -> Path:
    """A folder with the embedded model and the code of the example."""
    shutil.copytree(ROOT / "resources/reference", tmp_path / "resources/reference")
    cells = json.loads((ROOT / "docs/example.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "example.py").write_text("\n".join(sources), encoding="utf-8")
    return tmp_path


def run_example(folder: Path) -> str:
    """What the example prints."""
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": "",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_example_is_stored_without_outputs() -> None:
    cells = json.loads((ROOT / "docs/example.ipynb").read_text(encoding="utf-8"))["cells"]

    assert not [cell for cell in cells if cell.get("outputs")]


def test_the_example_measures_every_layer_without_a_study(example_folder: Path) -> None:
    printed = run_example(example_folder)

    assert sum(line.startswith("layer") for line in printed.splitlines()) == 12
    assert "calibration" not in printed


@pytest.mark.slow
def test_the_example_shows_the_results_of_a_study(example_folder: Path, tmp_path: Path) -> None:
    calibrations = ("facts", "recall")
    tables = write_study(tmp_path / "tables", n_layers=6, calibrations=calibrations, sizes=(1,))
    database.build_database(tables, example_folder / "results/lamina.duckdb")

    assert "calibration" in run_example(example_folder)


LOADED_MODULES = """
import lamina, lamina_workflow, sys
print(*{"torch", "transformers", "duckdb", "pyarrow"} & set(sys.modules))
"""


def test_importing_the_library_loads_no_torch() -> None:
    printed = subprocess.check_output(
        [sys.executable, "-c", LOADED_MODULES], env={"PYTHONPATH": str(ROOT / "src")}, text=True
    )

    assert printed.split() == []


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The manifest of the tiny model, with its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return describe_model("tiny", Model(source="tiny", dtype="float32"), folder)


@pytest.fixture
def question_calibration(tmp_path: Path, manifest: dict[str, Any]) -> CalibrationSamples:
    """The questions, as a job reads them from a file."""
    lines = []
    for query, choices, gold in QUESTIONS:
        lines.append(json.dumps({"query": query, "choices": choices, "gold": gold}))
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    entry = Calibration.from_options({"choices": "questions.jsonl"})
    return prepare_calibration("questions", entry, manifest, tmp_path)


@pytest.fixture
def text_calibration(tmp_path: Path, manifest: dict[str, Any]) -> CalibrationSamples:
    """The texts, as a job reads them from a file."""
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    options = {"text": "texts.json", "documents": None, "length": 128}
    return prepare_calibration("texts", Calibration.from_options(options), manifest, tmp_path)


@pytest.mark.parametrize(
    ("samples", "calibration_fixture"),
    [(QUESTIONS, "question_calibration"), (TEXTS, "text_calibration")],
)
@pytest.mark.parametrize("kind", ["layer", "mlp"])
def test_a_sweep_in_a_notebook_has_the_numbers_of_a_job(
    samples: list[Any], calibration_fixture: str, kind: str, request: pytest.FixtureRequest
) -> None:
    model = tiny.model()
    units = all_units(5, kind)
    calibration = request.getfixturevalue(calibration_fixture)
    context = Context(chance_accuracy(calibration.samples, model.config.vocab_size))
    sweep_rows = sweep.sweep_units(model, calibration.samples, units).rows(["none", *units])
    job_rows = score_sweep(parquet.from_rows("sweeps", sweep_rows), METRIC_NAMES, context, 0)

    table = lamina.sweep(model, tiny.tokenizer(), samples, kind, METRIC_NAMES)

    job_scores = [row["score"] for row in job_rows]
    assert set(table["metric"].to_pylist()) == set(METRIC_NAMES)
    assert table["unit"].to_pylist() == 2 * units
    assert table["rank"].to_pylist() == [row["rank"] for row in job_rows]
    assert table["score"].to_pylist() == pytest.approx(job_scores, rel=1e-4, abs=1e-6)


def choose(model: Any, tokenizer: Any, query: str, choices: list[str]) -> int:
    """The index of the choice with the highest log-likelihood per character."""
    scores = []
    for choice in choices:
        log_likelihood = choice_log_likelihood(model, tokenizer, query, choice)
        scores.append(log_likelihood / len(choice))
    return scores.index(max(scores))


def test_accuracy_is_that_of_models_cut_by_hand() -> None:
    """The right choices are those of the whole model, so that each layer can only harm it."""
    model = tiny.model()
    tokenizer = tiny.tokenizer()
    questions = []
    for index in range(24):
        query, choices, _ = make_question(index)
        questions.append((query, choices, choose(model, tokenizer, query, choices)))
    chance = 1 / 3
    expected_scores = []
    for layer in all_units(5, "layer"):
        cut_model = cut(model, [layer])
        n_right = 0
        for query, choices, gold in questions:
            n_right += choose(cut_model, tokenizer, query, choices) == gold
        accuracy = n_right / len(questions)
        expected_scores.append(1 - max(accuracy - chance, 0) / (1 - chance))

    table = lamina.sweep(model, tokenizer, questions, metrics=["accuracy"])

    assert len(set(expected_scores)) > 1
    assert table["score"].to_pylist() == pytest.approx(expected_scores)


def test_only_the_beginning_of_a_text_is_read() -> None:
    texts = [" ".join(WORDS[index : index + 9]) for index in range(8)]
    beginnings = [" ".join(WORDS[index : index + 4]) for index in range(8)]

    def sweep_scores(samples: list[str], **options: int) -> list[float]:
        table = lamina.sweep(
            tiny.model(), tiny.tokenizer(), samples, metrics=["perplexity"], **options
        )
        return table["score"].to_pylist()

    assert sweep_scores(texts, length=4) == sweep_scores(beginnings)
    assert sweep_scores(texts, length=4) != sweep_scores(texts)


def test_a_sweep_measures_in_evaluation_mode_and_restores_training_mode() -> None:
    model = tiny.model("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    of_evaluation = lamina.sweep(model, tiny.tokenizer(), TEXTS, "layer", METRIC_NAMES)
    model.train()

    of_training = lamina.sweep(model, tiny.tokenizer(), TEXTS, "layer", METRIC_NAMES)

    assert model.training
    assert of_training["score"].to_pylist() == of_evaluation["score"].to_pylist()


def test_every_metric_can_be_asked_for() -> None:
    metrics = [name for name, metric in METRICS.items() if not metric.writes]

    table = lamina.sweep(tiny.model(), tiny.tokenizer(), QUESTIONS, metrics=metrics)

    assert set(table["metric"].to_pylist()) == set(metrics)


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([], {}, "at least one"),
        (["t1 t2", QUESTIONS[0]], {}, "question .*, or at least one text, but not both"),
        ([("t1", ["t2", "t3"], 2)], {}, "number 0 is not a question"),
        ([("t1", ["t2", "t3"], "t2")], {}, "number 0 is not a question"),
        ([("t1", "t2")], {}, "number 0 is not a question"),
        (QUESTIONS, {"units": "head"}, "units: 'head'.*layer, attention, mlp"),
        (QUESTIONS, {"metrics": ["perplexty"]}, "metrics: 'perplexty'.*perplexity"),
        (QUESTIONS, {"metrics": ["exact_match"]}, "'exact_match' counts written answers"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    samples: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaminaError, match=message):
        lamina.sweep(tiny.model(), tiny.tokenizer(), samples, **options)


def test_results_need_a_run(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="lamina run"):
        lamina_workflow.results(tmp_path)

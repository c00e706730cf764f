"""Small models that others trained, on real text, through all stages. Skipped where the folder of models is absent."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.pipeline.project import SHARED, Project, copy_project

pytestmark = [
    pytest.mark.studies,
    pytest.mark.skipif(
        not SHARED.is_dir(), reason="REAL MODELS NOT TESTED: no folder shared/real of models beside the project"
    ),
]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """config/tinystories.yaml with its source and text replaced as its comments say, for two models at once."""
    project = copy_project(tmp_path_factory.mktemp("stories"), "config/tinystories.yaml")
    for name in ("tiny1m-llama", "stories260K-llama"):
        shutil.copytree(SHARED / "models" / name, project.folder / "models" / name)
    config = yaml.safe_load(project.config.read_text())
    config["models"] = {
        "tiny1m": {"source": "models/tiny1m-llama"},
        "stories260k": {"source": "models/stories260K-llama"},
    }
    text = str(SHARED / "data/tinystories_1000.json")
    config["calibrations"]["stories"]["text"] = text
    config["benchmarks"]["perplexity"]["heldout"]["text"] = text
    for study in config["studies"].values():
        study["models"] = list(config["models"])
    project.config.write_text(yaml.safe_dump(config))
    project.run()
    return project


@torch.inference_mode()
def plain_perplexity(name: str, documents: list[str], window: int) -> float:
    """One window at a time, `window` inputs and the tokens one to the right of them, no batches."""
    folder = SHARED / "models" / name
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    loss, count = 0.0, 0
    for document in documents:
        tokens = torch.tensor(tokenizer(document)["input_ids"])
        for start in range(0, len(tokens) - 1, window):
            part = tokens[start : start + window + 1]
            logits = model(part[None, :-1]).logits[0]
            loss += float(torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum"))
            count += len(part) - 1
    return math.exp(loss / count)


@pytest.mark.parametrize(("model", "folder"), [("tiny1m", "tiny1m-llama"), ("stories260k", "stories260K-llama")])
def test_the_perplexity_of_the_base_model_is_that_of_a_plain_loop(stories: Project, model: str, folder: str) -> None:
    found = dict(stories.query("SELECT model, value FROM benchmarks WHERE metric = 'perplexity' AND removed = 0"))
    documents = json.loads((SHARED / "data/tinystories_1000.json").read_text())[500:700]
    assert found[model] == pytest.approx(plain_perplexity(folder, documents, 128), rel=1e-4)


def test_every_layer_of_so_small_a_model_matters(stories: Project) -> None:
    rows = stories.query(
        """SELECT score, ci_low FROM relevance
           WHERE metric = 'perplexity' AND selector = 'base' AND removed = 0""",
    )
    assert len(rows) == 4 + 5
    assert all(low > 0 for _, low in rows)


def test_removing_layers_hurts_and_more_layers_hurt_more(stories: Project) -> None:
    rows = stories.query(
        """SELECT model, removed, min(value) FROM benchmarks
           WHERE metric = 'perplexity' AND repair = 'none' GROUP BY ALL ORDER BY ALL""",
    )
    for model in ("tiny1m", "stories260k"):
        values = [value for name, _, value in rows if name == model]
        assert values == sorted(values) and len(values) == 3


def test_the_ghost_patch_lowers_perplexity(stories: Project) -> None:
    rows = stories.query(
        """SELECT a.value, b.value FROM benchmarks a JOIN benchmarks b
           USING (model, calibration, selector, removed, healing, task, metric)
           WHERE metric = 'perplexity' AND a.repair = 'none' AND b.repair = 'ghost' AND removed = 1""",
    )
    assert rows and all(patched < pruned for pruned, patched in rows)


def test_text_has_accuracy_relevance_by_its_last_token(stories: Project) -> None:
    rows = stories.query("SELECT count(*) FROM relevance WHERE metric = 'accuracy' AND score IS NOT NULL")
    assert rows[0][0] > 0


def test_nothing_is_left_to_do(stories: Project) -> None:
    assert stories.stale() == []


def test_the_folder_of_models_was_not_written_to(stories: Project) -> None:
    assert not [path for path in Path(SHARED).rglob("*") if path.suffix == ".tmp"]

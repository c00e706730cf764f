"""The shipped configurations load, and the README and the schema of the keys are up to date."""

import json
from pathlib import Path
from typing import Any

import config_pages
import pytest
import yaml
from jsonschema import Draft202012Validator

from lamina.options.entry import Choice
from lamina_workflow.checks import load
from lamina_workflow.config.configuration import Configuration
from tests import ROOT
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_folder

# Which model each shipped configuration has on disk, and its number of layers.
LOCAL_MODELS = {
    "config/config.yaml": ("reference", 12),
    "config/complete.yaml": ("reference", 12),
    "config/edits.yaml": ("reference", 12),
    "config/papers/minitron.yaml": ("reference", 12),
    "tests/configs/tiny.yaml": ("reference", 12),
    "config/models/gpt-oss-20b.yaml": ("gpt-oss-20b", 12),
    "config/tinystories.yaml": ("stories", 5),
    "config/smollm2-local.yaml": ("smollm2", 30),
    "config/smollm2-power.yaml": ("smollm2", 30),
    "config/smollm2-sets.yaml": ("smollm2", 30),
    "config/smollm2-protocol.yaml": ("smollm2", 30),
    "config/smollm2-papers.yaml": ("smollm2", 30),
    "config/smollm2-edits.yaml": ("smollm2", 30),
    "config/qwen-0.5b.yaml": ("qwen-0.5b", 24),
    "config/qwen-1.5b.yaml": ("qwen-1.5b", 28),
    "config/qwen-1.5b-distilled.yaml": ("qwen-1.5b-chat", 28),
    "config/qwen-1.5b-quarter.yaml": ("qwen-1.5b-chat", 28),
    "config/qwen-repairs.yaml": ("qwen-0.5b-chat", 24),
    "config/qwen-written.yaml": ("qwen-0.5b-chat", 24),
    "config/qwen-papers.yaml": ("qwen-0.5b", 24),
    "config/qwen-own-answers.yaml": ("qwen-0.5b-chat", 24),
    "config/qwen-1.5b-own-answers.yaml": ("qwen-1.5b-chat", 28),
    "config/qwen-1.5b-repairs.yaml": ("qwen-1.5b-chat", 28),
    "config/qwen-repaired.yaml": ("qwen-0.5b", 24),
}
# Those of models and data of the hub.
HUB_MODELS = [
    "config/papers/rethinking-layer-relevance.yaml",
    "config/papers/deeper-layers.yaml",
    "config/papers/ghosted-layers.yaml",
    "config/models/qwen3-8b.yaml",
    "config/models/llama-3.1-8b.yaml",
    "config/models/olmo-3-7b.yaml",
    "config/models/gemma-3-4b.yaml",
    "config/smollm2.yaml",
]
SHIPPED = [*LOCAL_MODELS, *HUB_MODELS]
# They train the embedded model and its siblings, and are no studies.
TRAINING = {"config/reference.yaml", "config/siblings.yaml"}


def read_raw(name: str) -> RawConfig:
    raw: RawConfig = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return raw


def list_data_entries(raw: RawConfig) -> list[RawConfig]:
    """The calibrations, tasks and texts of a configuration."""
    benchmarks = raw.get("benchmarks", {})
    return [
        *raw["calibrations"].values(),
        *benchmarks.get("tasks", {}).values(),
        *benchmarks.get("perplexity", {}).values(),
    ]


def write_documents(file: Path, document: RawConfig) -> None:
    """A thousand equal documents: lines of JSON, or texts in one JSON list."""
    if file.suffix == ".json":
        file.write_text(json.dumps([document["text"]] * 1000))
    else:
        file.write_text("\n".join([json.dumps(document)] * 1000))


def write_local_files(raw: RawConfig, folder: Path) -> None:
    """Write the files that a configuration names, and make it name these."""
    documents = {
        "choices": {"query": "a", "choices": ["b", "c"], "gold": 0},
        "text": {"text": "a"},
    }
    for entry in list_data_entries(raw):
        for key, document in documents.items():
            if "/" in entry.get(key, ""):
                file = folder / Path(entry[key]).name
                write_documents(file, document)
                entry[key] = str(file)


def load_shipped(name: str, folder: Path) -> Configuration:
    """A shipped configuration with the files that its user would have."""
    raw = read_raw(name)
    if name in LOCAL_MODELS:
        model, n_layers = LOCAL_MODELS[name]
        write_model_folder(folder / "model", {"num_hidden_layers": n_layers})
        (folder / "model/chat_template.jinja").write_text("{{ messages[0].content }}")
        raw["models"][model]["source"] = str(folder / "model")
        write_local_files(raw, folder)
    return load.load_configuration(raw, ROOT)


def list_used_names(configuration: Configuration, section: str) -> set[str]:
    """The entries of a section that studies, repairs or healings use."""
    names: set[str] = set()
    for study in configuration.studies.values():
        names.update(getattr(study, section, []))
    if section == "calibrations":
        for repair in configuration.repairs.values():
            names.update(repair.data)
        for healing in configuration.healings.values():
            names.update(healing.weights("own"))
        for selector in configuration.selectors.values():
            names.update(selector.also)
        for calibration in configuration.calibrations.values():
            names.update(getattr(calibration, "mixture", []))
    return names


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_loads_and_uses_what_it_defines(name: str, tmp_path: Path) -> None:
    configuration = load_shipped(name, tmp_path)

    for section in ("calibrations", "selectors", "repairs", "healings", "diagnoses"):
        unused = set(getattr(configuration, section)) - list_used_names(configuration, section)
        assert not unused, f"{name} defines {section} that no study uses"


def test_the_shipped_configurations_are_all_tested() -> None:
    files = (ROOT / "config").rglob("*.yaml")

    names = {str(file.relative_to(ROOT)) for file in files}
    assert names - TRAINING <= set(SHIPPED)


def test_the_readme_is_that_of_the_classes() -> None:
    remedy = "run PYTHONPATH=src python tools/config_pages.py"
    assert config_pages.README.read_text(encoding="utf-8") == config_pages.readme(), remedy


def test_the_schema_is_that_of_the_classes() -> None:
    schema = config_pages.as_json(config_pages.schema())

    remedy = "run PYTHONPATH=src python tools/config_pages.py"
    assert config_pages.SCHEMA.read_text(encoding="utf-8") == schema, remedy


def test_every_key_is_explained() -> None:
    classes: list[Any] = []
    for _, model in config_pages.parts():
        classes += [model, *model.kinds()]
    # The keys that choose a class; the README explains them by the classes.
    chosen_by = {model.BY for model in classes if issubclass(model, Choice)}

    for model in classes:
        unexplained = {key for key, field in model.model_fields.items() if not field.description}
        assert model.__doc__, model
        assert unexplained <= chosen_by, model


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(config_pages.schema())


@pytest.mark.parametrize("name", [*SHIPPED, "tests/configs/minimal.yaml"])
def test_editors_accept_the_shipped_configurations(schema: Draft202012Validator, name: str) -> None:
    assert [error.message for error in schema.iter_errors(read_raw(name))] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("selectors.accuracy.stratgy", "block"),
        ("selectors.accuracy.metric", "acuracy"),
        ("repairs.ghost.ridge", -1),
        ("repairs.ghost", {"ridge": 1}),
        ("calibrations.recall.text", "microworld_corpus"),
        ("studies.prune.removed", []),
    ],
)
def test_editors_refuse_what_lamina_refuses(
    schema: Draft202012Validator, key: str, value: Any
) -> None:
    assert list(schema.iter_errors(set_key(minimal_config(), key, value)))

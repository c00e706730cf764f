"""The configurations that lamina ships, and the README that explains them, keep up with the classes."""

import json
from collections.abc import Callable
from pathlib import Path

import config_pages as document
import pytest
import yaml
from jsonschema import Draft202012Validator

from lamina.options.entry import Choice
from lamina_workflow.checks import load
from tests import ROOT
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_folder

SHIPPED: dict[str, Callable[[RawConfig, Path], RawConfig]] = {
    "config/config.yaml": lambda raw, folder: set_key(
        raw, "models.reference.source", str(folder / "m12")
    ),
    "tests/configs/tiny.yaml": lambda raw, folder: set_key(
        raw, "models.reference.source", str(folder / "m12")
    ),
    "config/papers/rethinking-layer-relevance.yaml": lambda raw, folder: raw,
    "config/papers/deeper-layers.yaml": lambda raw, folder: raw,
    "config/papers/ghosted-layers.yaml": lambda raw, folder: raw,
    "config/papers/minitron.yaml": lambda raw, folder: set_key(
        raw, "models.reference.source", str(folder / "m12")
    ),
    "config/models/qwen3-8b.yaml": lambda raw, folder: raw,
    "config/models/llama-3.1-8b.yaml": lambda raw, folder: raw,
    "config/models/olmo-3-7b.yaml": lambda raw, folder: raw,
    "config/models/gemma-3-4b.yaml": lambda raw, folder: raw,
    "config/models/gpt-oss-20b.yaml": lambda raw, folder: set_key(
        raw, "models.gpt-oss-20b.source", str(folder / "m12")
    ),
    "config/complete.yaml": lambda raw, folder: set_key(
        raw, "models.reference.source", str(folder / "m12")
    ),
    "config/smollm2.yaml": lambda raw, folder: raw,
    "config/smollm2-local.yaml": lambda raw, folder: local_smollm2(raw, folder),
    "config/smollm2-power.yaml": lambda raw, folder: local_smollm2(raw, folder),
    "config/smollm2-sets.yaml": lambda raw, folder: local_smollm2(raw, folder),
    "config/smollm2-protocol.yaml": lambda raw, folder: local_smollm2(raw, folder),
    "config/smollm2-papers.yaml": lambda raw, folder: local_smollm2(raw, folder),
    "config/tinystories.yaml": lambda raw, folder: set_key(
        set_key(
            set_key(raw, "models.stories.source", str(folder / "m5")),
            "calibrations.stories.text",
            str(folder / "text.json"),
        ),
        "benchmarks.perplexity.heldout.text",
        str(folder / "text.json"),
    ),
}


def local_smollm2(raw: RawConfig, folder: Path) -> RawConfig:
    """With what `make smollm2` would have written."""
    write_model_folder(folder / "m30", {"num_hidden_layers": 30})
    lines = {
        "choices": json.dumps({"query": "a", "choices": ["b", "c"], "gold": 0}),
        "text": json.dumps({"text": "a"}),
    }
    measured = {"tasks": {}, "perplexity": {}} | raw.get("benchmarks", {})
    for entry in (
        *raw["calibrations"].values(),
        *measured["tasks"].values(),
        *measured["perplexity"].values(),
    ):
        key = "choices" if "choices" in entry else "text"
        entry[key] = str(folder / Path(entry[key]).name)
        Path(entry[key]).write_text("\n".join([lines[key]] * 1000))
    return set_key(raw, "models.smollm2.source", str(folder / "m30"))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_configurations_load(name: str, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "m12", {"num_hidden_layers": 12})
    write_model_folder(tmp_path / "m5", {"num_hidden_layers": 5})
    (tmp_path / "text.json").write_text(json.dumps(["a"] * 1000))
    raw = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    loaded = load.load_configuration(SHIPPED[name](raw, tmp_path), ROOT)
    for kind in ("calibrations", "selectors", "repairs", "healings", "diagnoses"):
        used = {entry for study in loaded.studies.values() for entry in getattr(study, kind, [])}
        if kind == "calibrations":
            used |= {name for repair in loaded.repairs.values() for name in repair.data}
            used |= {
                name for healing in loaded.healings.values() for name in healing.weights("own")
            }
        assert set(getattr(loaded, kind)) <= used, f"{name} defines {kind} that no study uses"


def test_the_shipped_configurations_are_all_tested() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "config").rglob("*.yaml")}
    assert found - {"config/reference.yaml", "config/siblings.yaml"} <= set(SHIPPED)


def test_the_readme_and_the_schema_are_those_of_the_classes() -> None:
    remedy = "run PYTHONPATH=src python tools/config_pages.py"
    assert document.README.read_text(encoding="utf-8") == document.readme(), remedy
    assert document.SCHEMA.read_text(encoding="utf-8") == document.as_json(document.schema()), (
        remedy
    )


def test_every_key_is_explained() -> None:
    classes = [each for _, model in document.parts() for each in [model, *model.kinds()]]
    told = [each.BY for each in classes if issubclass(each, Choice)]
    for each in classes:
        assert each.__doc__
        assert {key for key, field in each.model_fields.items() if not field.description} <= set(
            told
        ), each


@pytest.mark.parametrize("name", [*SHIPPED, "tests/configs/minimal.yaml"])
def test_editors_accept_the_shipped_configurations(name: str) -> None:
    raw = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    assert not [error.message for error in Draft202012Validator(document.schema()).iter_errors(raw)]


def test_editors_refuse_what_lamina_refuses() -> None:
    schema = Draft202012Validator(document.schema())
    for where, value in (
        ("selectors.accuracy.stratgy", "block"),
        ("selectors.accuracy.metric", "acuracy"),
        ("repairs.ghost.ridge", -1),
        ("repairs.ghost", {"ridge": 1}),
        ("calibrations.recall.text", "microworld_corpus"),
        ("studies.prune.removed", []),
    ):
        assert list(schema.iter_errors(set_key(minimal_config(), where, value))), where

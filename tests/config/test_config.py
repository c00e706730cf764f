"""What a configuration may say, and what it means when it is read."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.options import calibrations, healings, models, repairs, selectors
from lamina.options.entry import Entry
from lamina_workflow.checks import load
from lamina_workflow.config import configuration, studies, text
from lamina_workflow.config.studies import Maps, Size
from tests import ROOT
from tests.given.configurations import (
    RawConfig,
    minimal_config,
    set_key,
    write_model_and_data,
    write_model_folder,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_model_and_data(tmp_path)


def test_a_loaded_configuration_is_plain_and_complete(root: Path) -> None:
    loaded = load.load_configuration(minimal_config(), root).plain()
    assert json.loads(json.dumps(loaded)) == loaded
    assert loaded["calibrations"]["recall"] == {
        "task": "microworld_recall",
        "split": "train",
        "limit": None,
        "num_fewshot": 0,
        "seed": 0,
        "trust_code": False,
        "answers": "gold",
        "keep": "all",
        "temperature": 0.0,
        "score": "acc_norm",
        "group": None,
        "replicates": 1,
    }
    assert loaded["studies"]["prune"]["tasks"] == "all"
    assert loaded["studies"]["maps"]["units"] == "layer"
    assert loaded["benchmarks"]["efficiency"] is None
    assert loaded["benchmarks"]["perplexity"]["corpus_test"]["stride"] == 64
    assert loaded["sweep"] == {"blocks": "auto", "tokens": 16384}


def test_loading_twice_changes_nothing(root: Path) -> None:
    loaded = load.load_configuration(minimal_config(), root)
    assert load.load_configuration(copy.deepcopy(loaded.plain()), root) == loaded


def test_loading_leaves_its_input_alone(root: Path) -> None:
    raw = minimal_config()
    load.load_configuration(raw, root)
    assert raw == minimal_config()


def test_the_top_seed_is_the_default_of_all_seeds(root: Path) -> None:
    loaded = load.load_configuration(
        set_key(set_key(minimal_config(), "seed", 7), "selectors.random.seed", 3), root
    )
    assert loaded.calibrations["recall"].seed == 7
    assert loaded.selectors["accuracy"].seed == 7
    assert loaded.selectors["random"].seed == 3
    assert loaded.healings["lora"].seed == 7


def test_values_that_reached_us_as_text_are_read_as_what_they_spell(root: Path) -> None:
    raw = set_key(
        minimal_config(), "calibrations.recall.limit", "40"
    )  # as from --config 'calibrations={recall: {limit: 40}}'
    set_key(
        raw, "healings.lora.learning_rate", "3e-4"
    )  # YAML 1.1 knows no number without a dot before the e
    set_key(raw, "models.small.trust_remote_code", "true")
    set_key(raw, "studies.prune.removed", ["1", "25%"])
    loaded = load.load_configuration(raw, root)
    assert loaded.calibrations["recall"].limit == 40
    assert loaded.healings["lora"].learning_rate == 3e-4
    assert loaded.models["small"].trust_remote_code is True
    assert loaded.studies["prune"].removed == [1, "25%"]


LOOSELY_WRITTEN = [
    ("studies.prune.removed", "25%", ["25%"]),
    ("studies.prune.removed", ["25 %"], ["25%"]),
    ("studies.prune.removed", "2", [2]),
    ("studies.prune.models", "small", ["small"]),
    ("selectors.accuracy.protect", "010", [10]),
    ("selectors.accuracy.protect", "[010, 0_2]", [10, 2]),
    ("calibrations.corpus.length", "0_32", 32),
    ("calibrations.corpus.length", "32.0", 32),
    ("calibrations.corpus.documents", "10:50", "10:50"),
    ("models.hub.revision", "0012345", "0012345"),
    ("models.hub.revision", "1.10", "1.10"),
    ("models.hub.revision", "1e5", "1e5"),
    ("models.hub.revision", "2024-01-01", "2024-01-01"),
    ("models.hub.chat_template", "yes", True),
    ("models.hub.template_arguments", "{effort: 010, deep: true, way: on}", None),
    ("report.keep", "95 %", 0.95),
]


@pytest.mark.parametrize(("where", "written", "meant"), LOOSELY_WRITTEN)
def test_what_can_be_read_in_one_way_is_read(
    root: Path, where: str, written: Any, meant: Any
) -> None:
    (root / "settings.yaml").write_text(
        yaml.safe_dump(set_key(minimal_config(), where, "VALUE")).replace("VALUE", str(written))
    )
    write_model_folder(root / "deep", {"num_hidden_layers": 12})
    raw = text.read_configuration(root / "settings.yaml")
    raw["models"]["small"]["source"] = "deep"
    found: Any = load.load_configuration(raw, root).plain()
    for key in where.split("."):
        found = found[key]
    if meant is None:
        meant = {"effort": 10, "deep": True, "way": "on"}
    assert found == meant and type(found) is type(meant)


def test_a_name_may_be_a_number(root: Path) -> None:
    raw = minimal_config()
    raw["calibrations"]["2024"] = raw["calibrations"].pop("recall")
    raw["studies"] = {"maps": raw["studies"]["maps"] | {"calibrations": [2024]}}
    assert load.load_configuration(raw, root).studies["maps"].calibrations == ["2024"]


@pytest.mark.parametrize(
    ("written", "bytes_left"),
    [("6GB", 6e9), ("6 Gb", 6e9), ("6gb", 6e9), ("1.5 GiB", 1.5 * 2**30), ("512 MiB", 2**29)],
)
def test_a_size_in_memory_is_read_with_any_spelling_of_its_unit(
    written: str, bytes_left: float
) -> None:
    assert Size(memory=written).limit(1e12) == bytes_left


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 5},
        {"n_layer": 5},
        {"num_layers": 5},
        {"text_config": {"num_hidden_layers": 5}},
    ],
)
def test_layers_come_from_the_models_folder_or_its_entry(root: Path, settings: RawConfig) -> None:
    write_model_folder(root / "folder", settings)
    loaded = load.load_configuration(
        set_key(
            set_key(minimal_config(), "models.small.source", "folder"), "models.hub.layers", 32
        ),
        root,
    ).models
    assert (loaded["small"].layers, loaded["hub"].layers) == (5, 32)
    assert load.load_configuration(minimal_config(), root).models["hub"].layers is None


def test_a_local_model_tells_its_family(root: Path) -> None:
    write_model_folder(root / "told", {"num_hidden_layers": 5, "model_type": "gpt2"})
    assert (
        load.load_configuration(set_key(minimal_config(), "models.small.source", "told"), root)
        .models["small"]
        .family
        == "gpt2"
    )
    assert (
        load.load_configuration(set_key(minimal_config(), "models.hub.family", "llama"), root)
        .models["hub"]
        .family
        == "llama"
    )


def test_a_path_from_home_is_the_same_for_all_that_read_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = root / "home"
    write_model_folder(home / "model", {"num_hidden_layers": 6})
    (home / "text.json").write_text(json.dumps(["a"] * 500))
    monkeypatch.setenv("HOME", str(home))
    raw = set_key(
        set_key(minimal_config(), "models.small.source", "~/model"),
        "calibrations.corpus.text",
        "~/text.json",
    )
    loaded = load.load_configuration(raw, root)
    assert (
        loaded.models["small"].source
        == loaded.models["small"].options()["source"]
        == str(home / "model")
    )
    assert loaded.models["small"].layers == 6
    assert loaded.calibrations["corpus"].options()["text"] == str(home / "text.json")


def test_the_embedded_corpus_goes_by_its_split() -> None:
    for split in ("train", "validation", "test"):
        assert (ROOT / calibrations.corpus_file("microworld_corpus", split)).is_file()
    assert calibrations.corpus_file("texts/mine.json", "test") == "texts/mine.json"


@pytest.mark.parametrize(
    ("share", "count"), [("25%", 2), ("24.9%", 1), ("1%", 1), ("100%", 8), ("12.5%", 1)]
)
def test_a_share_of_layers_is_rounded_down_to_at_least_one(share: str, count: int) -> None:
    assert studies.share_of_layers(share, 8) == count


@pytest.mark.parametrize(
    ("selector", "largest"),
    [
        ({}, 7),
        ({"protect": [0, -1]}, 6),
        ({"protect": [0, -8]}, 7),
        ({"protect": [3], "strategy": "block"}, 4),
        ({"strategy": "block"}, 7),
        ({"strategy": "deepest"}, 7),
        ({"strategy": "deepest", "protect": [0, -1]}, 6),
        ({"strategy": "deepest", "protect": [5, -2]}, 5),
        ({"strategy": "random", "protect": [1, 2, 3]}, 5),
        ({"units": "attention"}, 8),
        ({"units": "mlp", "protect": [0]}, 7),
    ],
)
def test_the_largest_removal_of_eight_layers(selector: RawConfig, largest: int) -> None:
    metric = {} if selector.get("strategy") in ("deepest", "random") else {"metric": "cosine"}
    assert selectors.Selector.from_options(metric | selector).largest_removal(8) == largest


def test_options_hold_what_differs_from_the_defaults_and_what_tells_the_class(root: Path) -> None:
    raw = set_key(
        minimal_config(), "repairs.mild", {"method": "ghost", "ridge": "1e-6", "bias": False}
    )
    set_key(
        raw, "calibrations.recall.score", "acc"
    )  # read by others than the job that draws the samples
    loaded = load.load_configuration(set_key(raw, "selectors.accuracy.protect", [0, -1]), root)
    assert loaded.repairs["ghost"].options() == {"method": "ghost"}
    assert loaded.repairs["mild"].options() == {"method": "ghost", "ridge": 1e-6}
    assert loaded.selectors["accuracy"].options() == {
        "strategy": "iterative",
        "metric": "accuracy",
        "protect": [0, -1],
    }
    assert loaded.calibrations["recall"].options() == {"task": "microworld_recall"}
    assert loaded.benchmarks.tasks["microworld_recall"].options() == {}
    seeded = load.load_configuration(set_key(raw, "seed", 7), root)
    assert seeded.healings["lora"].options() == {"method": "lora", "seed": 7}


@pytest.mark.parametrize(
    ("section", "read"),
    [
        ("models", models.Model.from_options),
        ("calibrations", calibrations.Calibration.from_options),
        ("selectors", selectors.Selector.from_options),
        ("repairs", repairs.Repair.from_options),
        ("healings", healings.Healing.from_options),
        ("diagnoses", configuration.Diagnosis.from_options),
    ],
)
def test_a_job_reads_back_the_entry_from_its_options(
    root: Path, section: str, read: Callable[[RawConfig], Entry]
) -> None:
    for entry in getattr(
        load.load_configuration(set_key(minimal_config(), "seed", 5), root), section
    ).values():
        assert read(json.loads(json.dumps(entry.options()))) == entry


def test_what_a_strategy_lacks_is_there_for_its_readers(root: Path) -> None:
    loaded = load.load_configuration(minimal_config(), root).selectors
    assert [loaded[name].metric for name in ("accuracy", "angular", "deepest", "random")] == [
        "accuracy",
        "angular",
        None,
        None,
    ]
    assert {entry.combine for entry in loaded.values()} == {"mean"}


def test_a_study_may_ask_for_diagnoses_alone(root: Path) -> None:
    study = {"models": ["small"], "calibrations": ["recall"], "diagnoses": ["variance"]}
    loaded = load.load_configuration(
        set_key(minimal_config(), "studies.looks", study), root
    ).studies
    assert isinstance(loaded["looks"], Maps) and loaded["looks"].metrics == []
    assert loaded["looks"].diagnoses == ["variance"] and loaded["maps"].diagnoses == []


def test_a_new_method_is_one_class(root: Path) -> None:
    """In a process of its own: the class would be known to all tests from then on."""
    raw = set_key(minimal_config(), "repairs.mine", {"method": "scale", "factor": "0.5"})
    code = f"""
from pathlib import Path
from typing import Literal
import config_pages as document
from lamina.options import repairs
from lamina.options.entry import option
from lamina_workflow.checks.load import load_configuration

class Scale(repairs.Repair):
    "Scales what is left."
    method: Literal["scale"] = "scale"
    factor: float = option("By how much.", 1.0, gt=0)

print(load_configuration({raw!r}, Path({str(root)!r})).repairs["mine"].options())
print("### method: scale" in document.readme(), "Scale" in document.schema()["$defs"])
"""
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = ['../src']\n{code}"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.splitlines() == ["{'method': 'scale', 'factor': 0.5}", "True True"]

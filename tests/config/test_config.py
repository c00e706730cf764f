"""What a configuration may say, and what it means when it is read: against values spelled out."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.errors import LaminaError
from lamina.options import calibrations, healings, models, repairs, selectors
from lamina.options.entry import Entry
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config import configuration, text
from lamina_workflow.config.studies import Maps, Prune, Size
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


def test_a_loaded_configuration_is_plain_json(root: Path) -> None:
    plain = load_configuration(minimal_config(), root).plain()

    assert json.loads(json.dumps(plain)) == plain


def test_a_short_healing_without_a_warmup_of_its_own_survives_reloading(root: Path) -> None:
    raw = set_key(minimal_config(), "healings.lora", {"method": "lora", "max_steps": 4})
    loaded = load_configuration(raw, root)

    assert load_configuration(loaded.plain(), root) == loaded


def test_a_loaded_configuration_has_every_default(root: Path) -> None:
    plain = load_configuration(minimal_config(), root).plain()

    assert plain["calibrations"]["recall"] == {
        "task": "microworld_recall",
        "split": "train",
        "limit": None,
        "num_fewshot": 0,
        "fewshot_seed": 1234,
        "seed": 0,
        "trust_code": False,
        "answers": "gold",
        "keep": "all",
        "temperature": 0.0,
        "score": "acc_norm",
        "group": None,
        "replicates": 1,
    }
    assert plain["studies"]["prune"]["tasks"] == "all"
    assert plain["studies"]["maps"]["units"] == "layer"
    assert plain["benchmarks"]["efficiency"] is None
    assert plain["benchmarks"]["perplexity"]["corpus_test"]["stride"] == 64
    assert plain["sweep"] == {"blocks": "auto", "tokens": 16384}


def test_loading_twice_changes_nothing(root: Path) -> None:
    loaded = load_configuration(minimal_config(), root)

    assert load_configuration(copy.deepcopy(loaded.plain()), root) == loaded


def test_loading_does_not_change_its_input(root: Path) -> None:
    raw = minimal_config()

    load_configuration(raw, root)

    assert raw == minimal_config()


def test_the_top_seed_is_the_default_of_all_seeds(root: Path) -> None:
    raw = set_key(minimal_config(), "seed", 7)
    set_key(raw, "selectors.random.seed", 3)

    loaded = load_configuration(raw, root)

    assert loaded.calibrations["recall"].seed == 7
    assert loaded.selectors["accuracy"].seed == 7
    assert loaded.selectors["random"].seed == 3
    assert loaded.healings["lora"].seed == 7


def test_values_of_the_command_line_are_read_as_what_they_spell(root: Path) -> None:
    """Snakemake passes on as text what is nested in `--config`; its YAML does not know 3e-4."""
    raw = set_key(minimal_config(), "calibrations.recall.limit", "40")
    set_key(raw, "healings.lora.learning_rate", "3e-4")
    set_key(raw, "models.small.trust_remote_code", "true")
    set_key(raw, "studies.prune.removed", ["1", "25%"])

    loaded = load_configuration(raw, root)

    assert loaded.calibrations["recall"].limit == 40
    assert loaded.healings["lora"].learning_rate == 3e-4
    assert loaded.models["small"].trust_remote_code is True
    assert loaded.studies["prune"].removed == [1, "25%"]


SPELLINGS = [
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
    (
        "models.hub.template_arguments",
        "{effort: 010, deep: true, way: on}",
        {"effort": 10, "deep": True, "way": "on"},
    ),
    ("report.keep", "95 %", 0.95),
]


@pytest.mark.parametrize(("key", "written", "value"), SPELLINGS)
def test_what_can_be_read_in_one_way_is_read(
    root: Path, key: str, written: Any, value: Any
) -> None:
    write_model_folder(root / "deep", {"num_hidden_layers": 12})
    raw = set_key(minimal_config(), "models.small.source", "deep")
    yaml_text = yaml.safe_dump(set_key(raw, key, "VALUE")).replace("VALUE", str(written))
    (root / "settings.yaml").write_text(yaml_text)

    loaded = load_configuration(text.read_configuration(root / "settings.yaml"), root)

    loaded_value: Any = loaded.plain()
    for name in key.split("."):
        loaded_value = loaded_value[name]
    assert loaded_value == value
    assert type(loaded_value) is type(value)


def test_a_name_may_be_a_number(root: Path) -> None:
    raw = minimal_config()
    raw["calibrations"]["2024"] = raw["calibrations"].pop("recall")
    raw["studies"] = {"maps": raw["studies"]["maps"] | {"calibrations": [2024]}}

    loaded = load_configuration(raw, root)

    assert loaded.studies["maps"].calibrations == ["2024"]


@pytest.mark.parametrize(
    ("written", "n_bytes"),
    [("6GB", 6e9), ("6 Gb", 6e9), ("6gb", 6e9), ("1.5 GiB", 1.5 * 2**30), ("512 MiB", 2**29)],
)
def test_a_size_in_memory_is_read_with_any_spelling_of_its_unit(
    written: str, n_bytes: float
) -> None:
    assert Size(memory=written).limit(1e12) == n_bytes


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 5},
        {"n_layer": 5},
        {"num_layers": 5},
        {"text_config": {"num_hidden_layers": 5}},
    ],
)
def test_the_number_of_layers_comes_from_the_models_folder(root: Path, settings: RawConfig) -> None:
    write_model_folder(root / "folder", settings)

    loaded = load_configuration(set_key(minimal_config(), "models.small.source", "folder"), root)

    assert loaded.models["small"].layers == 5


@pytest.mark.parametrize("n_layers", [32, None])
def test_the_number_of_layers_of_a_hub_model_comes_from_its_entry(
    root: Path, n_layers: int | None
) -> None:
    loaded = load_configuration(set_key(minimal_config(), "models.hub.layers", n_layers), root)

    assert loaded.models["hub"].layers == n_layers


def test_the_family_of_a_local_model_comes_from_its_folder(root: Path) -> None:
    write_model_folder(root / "gpt", {"num_hidden_layers": 5, "model_type": "gpt2"})

    loaded = load_configuration(set_key(minimal_config(), "models.small.source", "gpt"), root)

    assert loaded.models["small"].family == "gpt2"


def test_the_family_of_a_hub_model_comes_from_its_entry(root: Path) -> None:
    loaded = load_configuration(set_key(minimal_config(), "models.hub.family", "llama"), root)

    assert loaded.models["hub"].family == "llama"


@pytest.fixture
def home(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(root / "home"))
    return root / "home"


def test_a_model_is_found_below_home(root: Path, home: Path) -> None:
    write_model_folder(home / "model", {"num_hidden_layers": 6})

    loaded = load_configuration(set_key(minimal_config(), "models.small.source", "~/model"), root)

    model = loaded.models["small"]
    assert model.layers == 6
    assert model.source == str(home / "model")
    assert model.options()["source"] == str(home / "model")


def test_a_text_is_found_below_home(root: Path, home: Path) -> None:
    home.mkdir()
    (home / "text.json").write_text(json.dumps(["a"] * 500))

    loaded = load_configuration(
        set_key(minimal_config(), "calibrations.corpus.text", "~/text.json"), root
    )

    assert loaded.calibrations["corpus"].options()["text"] == str(home / "text.json")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_embedded_corpus_has_a_file_for_each_split(split: str) -> None:
    assert (ROOT / calibrations.corpus_file("microworld_corpus", split)).is_file()


def test_a_text_file_is_itself_for_any_split() -> None:
    assert calibrations.corpus_file("texts/mine.json", "test") == "texts/mine.json"


@pytest.mark.parametrize(
    ("share", "count"), [("25%", 2), ("24.9%", 1), ("1%", 1), ("100%", 8), ("12.5%", 1)]
)
def test_a_share_of_layers_is_rounded_down_to_at_least_one(share: str, count: int) -> None:
    assert selectors.share_of_layers(share, 8) == count


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ({"metric": "cosine"}, 7),
        ({"metric": "cosine", "protect": [0, -1]}, 6),
        ({"metric": "cosine", "protect": [0, -8]}, 7),
        ({"metric": "cosine", "protect": [3], "strategy": "block"}, 4),
        ({"metric": "cosine", "strategy": "block"}, 7),
        ({"metric": "cosine", "units": "attention"}, 8),
        ({"metric": "cosine", "units": "mlp", "protect": [0]}, 7),
        ({"strategy": "deepest"}, 7),
        ({"strategy": "deepest", "protect": [0, -1]}, 6),
        ({"strategy": "deepest", "protect": [5, -2]}, 5),
        ({"strategy": "random", "protect": [1, 2, 3]}, 5),
        ({"strategy": "given", "layers": [4, -1]}, 2),
    ],
)
def test_the_largest_removal_of_eight_layers(options: RawConfig, largest: int) -> None:
    selector = selectors.Selector.from_options(options)

    assert selector.largest_removal(8) == largest
    assert selector.allowed_sizes(8) == range(1, largest + 1)


@pytest.mark.parametrize(
    ("section", "name", "entry", "options"),
    [
        ("repairs", "ghost", {"method": "ghost"}, {"method": "ghost"}),
        (
            "repairs",
            "mild",
            {"method": "ghost", "ridge": "1e-6", "bias": False},
            {"method": "ghost", "ridge": 1e-6},
        ),
        (
            "selectors",
            "accuracy",
            {"metric": "accuracy", "protect": [0, -1]},
            {"strategy": "iterative", "metric": "accuracy", "protect": [0, -1]},
        ),
        # The score is read by other jobs than the one that draws the samples.
        (
            "calibrations",
            "recall",
            {"task": "microworld_recall", "score": "acc"},
            {"task": "microworld_recall"},
        ),
    ],
)
def test_options_of_a_job_hold_what_differs_from_the_defaults(
    root: Path, section: str, name: str, entry: RawConfig, options: RawConfig
) -> None:
    loaded = load_configuration(set_key(minimal_config(), f"{section}.{name}", entry), root)

    assert getattr(loaded, section)[name].options() == options


def test_options_of_a_task_without_settings_are_empty(root: Path) -> None:
    loaded = load_configuration(minimal_config(), root)

    assert loaded.benchmarks.tasks["microworld_recall"].options() == {}


def test_options_of_a_job_hold_the_top_seed(root: Path) -> None:
    loaded = load_configuration(set_key(minimal_config(), "seed", 7), root)

    assert loaded.healings["lora"].options() == {"method": "lora", "seed": 7}


@pytest.mark.parametrize(
    ("section", "from_options"),
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
    root: Path, section: str, from_options: Callable[[RawConfig], Entry]
) -> None:
    loaded = load_configuration(set_key(minimal_config(), "seed", 5), root)

    for entry in getattr(loaded, section).values():
        assert from_options(json.loads(json.dumps(entry.options()))) == entry


def test_options_that_a_strategy_does_not_have_can_still_be_read(root: Path) -> None:
    loaded = load_configuration(minimal_config(), root)

    assert loaded.selectors["accuracy"].metric == "accuracy"
    assert loaded.selectors["angular"].metric == "angular"
    assert loaded.selectors["deepest"].metric is None
    assert loaded.selectors["random"].metric is None
    assert {selector.combine for selector in loaded.selectors.values()} == {"mean"}


def test_the_checkpoints_of_a_healing_are_healings_of_their_own(root: Path) -> None:
    """The healing itself is what it is without them, so its job is the same."""
    raw = minimal_config()
    alone = load_configuration(raw, root)
    set_key(raw, "healings.lora.checkpoints", [2, 1])
    raw["studies"]["healed"] = raw["studies"]["prune"] | {"healings": ["none", "lora"]}

    loaded = load_configuration(raw, root)

    assert list(loaded.healings) == ["lora", "lora-2", "lora-1"]
    healed_study = loaded.studies["healed"]
    assert isinstance(healed_study, Prune)
    assert healed_study.healings == ["none", "lora", "lora-2", "lora-1"]
    options = loaded.healings["lora"].options()
    assert options == alone.healings["lora"].options()
    assert loaded.healings["lora-2"].options() == options | {"keep": 2}
    assert load_configuration(loaded.plain(), root).plain() == loaded.plain()


def test_a_checkpoint_of_a_healing_needs_a_name_that_is_free(root: Path) -> None:
    raw = set_key(minimal_config(), "healings.lora.checkpoints", [1])
    raw["healings"]["lora-1"] = {"method": "lora"}
    with pytest.raises(LaminaError, match="already a healing 'lora-1'. Rename one"):
        load_configuration(raw, root)


def test_a_study_may_ask_for_diagnoses_alone(root: Path) -> None:
    study = {"models": ["small"], "calibrations": ["recall"], "diagnoses": ["variance"]}

    loaded = load_configuration(set_key(minimal_config(), "studies.looks", study), root)

    assert isinstance(loaded.studies["looks"], Maps)
    assert loaded.studies["looks"].metrics == []
    assert loaded.studies["looks"].diagnoses == ["variance"]


# In a process of its own: the class would be known to all tests from then on.
NEW_METHOD = """
import json, sys
sys.path[:0] = ["../src"]
from pathlib import Path
from typing import Literal

import config_pages
from lamina.options import repairs
from lamina.options.entry import option
from lamina_workflow.checks.load import load_configuration


class Scale(repairs.Repair):
    "Scales the residual stream."
    method: Literal["scale"] = "scale"
    factor: float = option("By how much.", 1.0, gt=0)


root, raw = sys.argv[1:]
print(load_configuration(json.loads(raw), Path(root)).repairs["mine"].options())
print("in the README:", "### method: scale" in config_pages.readme())
print("in the schema:", "Scale" in config_pages.schema()["$defs"])
"""


def test_a_new_method_is_one_class(root: Path) -> None:
    raw = set_key(minimal_config(), "repairs.mine", {"method": "scale", "factor": "0.5"})

    process = subprocess.run(
        [sys.executable, "-c", NEW_METHOD, str(root), json.dumps(raw)],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout.splitlines() == [
        "{'method': 'scale', 'factor': 0.5}",
        "in the README: True",
        "in the schema: True",
    ]

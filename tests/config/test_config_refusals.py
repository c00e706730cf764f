"""Why a configuration cannot run: the refusal names the key, its value and what to write."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from lamina.errors import LaminaError
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.study.requests import list_variants
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


def configure(changes: RawConfig) -> RawConfig:
    """The minimal configuration with values replaced by their dotted keys."""
    raw = minimal_config()
    for key, value in changes.items():
        set_key(raw, key, value)
    return raw


def refusal(root: Path, changes: RawConfig) -> str:
    """The message by which the minimal configuration with these changes is refused."""
    with pytest.raises(LaminaError) as caught:
        load_configuration(configure(changes), root)
    return str(caught.value)


UNKNOWN_KEYS = {
    "calibrations.recall.limt": "'limit'",
    "calibrations.corpus.documnets": "'documents'",
    "modles": "'models'",
    "models.small.sauce": "'source'",
    "selectors.accuracy.stratgy": "'strategy'",
    "repairs.ghost.rigde": "'ridge'",
    "healings.lora.warmup": "'warmup_steps'",
    "benchmarks.perplexities": "'perplexity'",
    "benchmarks.tasks.microworld_recall.fewshot": "'num_fewshot'",
    "benchmarks.efficiency.promt": "'prompt'",
    "sweep.block": "'blocks'",
    "studies.prune.repair": "'repairs'",
    "studies.maps.metric": "'metrics'",
    "studies.prune.colour": "selectors, removed",
}


@pytest.mark.parametrize(("key", "nearest"), UNKNOWN_KEYS.items())
def test_an_unknown_key_is_named_with_the_nearest_key(root: Path, key: str, nearest: str) -> None:
    message = refusal(root, {key: 4})

    assert message.startswith(f"{key}: there is no such key")
    assert nearest in message


class Refused(NamedTuple):
    """A value that is refused, and words of the message, which begins with the key."""

    key: str
    value: Any
    words: list[str]
    # Where the message names a key below this one.
    below: str = ""


OUT_OF_BOUNDS = [
    Refused("seed", -1, ["-1", "a whole number of at least 0"]),
    Refused("seed", 0.5, ["0.5", "a whole number of at least 0"]),
    Refused(
        "models.small.dtype",
        "float23",
        ["'float23'", "float32, bfloat16", "Did you mean 'float32'?"],
    ),
    Refused("models.small.trust_remote_code", 3, ["3", "true or false"]),
    Refused(
        "calibrations.recall.limit", "many", ["'many'", "a whole number of at least 1 or null"]
    ),
    Refused("calibrations.recall.limit", 0, ["0", "of at least 1"]),
    Refused("calibrations.recall.limit", True, ["true", "a whole number"]),
    Refused("calibrations.recall.split", "test", ["'test'", "not test"]),
    Refused("calibrations.recall.score", "f1", ["'f1'", "acc_norm, acc"]),
    Refused("calibrations.mixture.fraction", 1.5, ["1.5", "above 0 and up to 1"]),
    Refused("calibrations.corpus.documents", "500", ["'500'", '"0:500"']),
    Refused("calibrations.corpus.documents", 500, ["500", '"0:500"']),
    Refused(
        "calibrations.corpus.documents",
        "30:10",
        ['"30:10" holds no document', 'such as "10:30"'],
    ),
    Refused("calibrations.corpus.documents", "7:7", ['"7:7" holds no document', 'such as "7:8"']),
    Refused(
        "benchmarks.perplexity.corpus_test.documents",
        "9:3",
        ['"9:3" holds no document', '"3:9"'],
    ),
    Refused("repairs.ghost.method", "gost", ["'gost'", "Write one of ghost, ", "mean 'ghost'?"]),
    Refused("diagnoses.variance.kind", None, ["is missing", "Write one of patching"]),
    Refused("diagnoses.variance.skip_first", 0, ["0", "of at least 1"]),
    Refused("selectors.accuracy.strategy", None, ["null is not allowed", "one of block"]),
    Refused("selectors.accuracy.metric", "acuracy", ["'acuracy'", "angular, cosine"]),
    Refused(
        "selectors.accuracy.strategy",
        "greedy",
        ["'greedy'", "deepest, given, iterative"],
    ),
    Refused("selectors.accuracy.units", "head", ["'head'", "layer, attention, mlp"]),
    Refused("selectors.accuracy.protect", ["first"], ["'first'", "a whole number"], below="[0]"),
    Refused("selectors.accuracy.protect", [8], ["8 is not a layer of 'small'", "Write 0 to 7"]),
    Refused(
        "selectors.accuracy",
        {"strategy": "given", "layers": [3, 8]},
        ["8 is not a layer of 'small'"],
        below=".layers",
    ),
    Refused(
        "selectors.accuracy",
        {"strategy": "given", "layers": [7, 3, -1]},
        ["-1 is named twice"],
        below=".layers",
    ),
    Refused(
        "selectors.accuracy",
        {"strategy": "given", "layers": []},
        ["[] is not allowed without `edits`", "such as [7, 3]"],
        below=".layers",
    ),
    Refused(
        "selectors.accuracy",
        {"strategy": "given", "layers": [7], "edits": ["2-3x2"], "units": "mlp"},
        ["edits move whole layers", "units: both"],
        below=".edits",
    ),
    Refused(
        "selectors.accuracy",
        {"strategy": "given", "layers": [7], "edits": ["3-2x2"]},
        ["'3-2x2' repeats nothing", "'2-3x2'"],
        below=".edits",
    ),
    Refused(
        "selectors.accuracy",
        {"strategy": "given", "layers": [7], "edits": ["6-7x2"]},
        ["'7' and '6-7x2' both change layer 7"],
        below=".edits",
    ),
    Refused("repairs.ghost.ridge", -1, ["-1", "validated, or a number of at least 0"]),
    Refused("repairs.ghost.ridge", "valid", ["'valid'", "validated"]),
    Refused("healings.lora.dropout", 1, ["1", "of at least 0 and below 1"]),
    Refused("healings.lora.learning_rate", float("nan"), ["nan", "a number above 0"]),
    Refused("healings.lora.keep", "last", ["'last'", "best, or the number of an epoch"]),
    Refused("healings.lora.keep", 11, ["there is no epoch 11", "epochs"]),
    Refused("healings.lora.checkpoints", [1, 11], ["there is no epoch 11", "epochs"]),
    Refused("healings.lora.checkpoints", [1, 1], ["listed twice"]),
    Refused("benchmarks.efficiency", 3, ["3", "mapping"]),
    Refused("benchmarks.efficiency.prompt", 0, ["0", "a whole number of at least 1"]),
    Refused("benchmarks.efficiency.batch", [], ["[]", "with at least one entry"]),
    Refused("benchmarks.efficiency.prompt", [64, 0], ["0", "at least 1"]),
    Refused("report", {"keep": "950%"}, ["'950%'", "up to 1"], below=".keep"),
    Refused("studies.prune.removed", [0.5], ["0.5", "3, 0 or -2", "25%"], below="[0]"),
    Refused("studies.prune.removed", ["-25%"], ["'-25%'", "25%"], below="[0]"),
    Refused("studies.prune.removed", [1, "a few"], ["'a few'", "25%"], below="[1]"),
    Refused("studies.prune.removed", ["0%"], ["'0%'", "25%"], below="[0]"),
    Refused("studies.prune.removed", "some", ["'some'", "a list such as"]),
    Refused("studies.prune.removed", ["6 parsecs"], ["'6 parsecs'", "{memory: 6GB}"], below="[0]"),
    Refused("studies.prune.removed", [], ["[]", "with at least one entry"]),
    Refused(
        "studies.prune.gates",
        [{"task": "microworld_recall"}],
        ["{task: NAME, keep: 90%}", "{task: NAME, floor: 0.5}"],
        below="[0]",
    ),
    Refused(
        "studies.prune.gates",
        [{"task": "microworld_recall", "keep": 0.9, "floor": 0.5}],
        ["{task: NAME, floor: 0.5}"],
        below="[0]",
    ),
    Refused(
        "studies.prune.gates",
        [{"task": "microworld_recal", "keep": "90%"}],
        ["not defined under `benchmarks`", "'microworld_recall'"],
        below="[0].task",
    ),
    Refused(
        "studies.prune.gates",
        [{"task": "corpus_test", "floor": 20}],
        ["perplexity", "keep: 90%"],
        below="[0].floor",
    ),
    Refused("studies.maps.metrics", [], ["[]", "a list of metrics", "diagnoses"]),
    Refused("studies.maps.metrics", ["accuraci"], ["'accuraci'", "angular, cosine"], below="[0]"),
    Refused("studies.prune.models", [], ["[]", "with at least one entry"]),
    Refused("studies.prune.tasks", "mnie", ["'mnie' is not defined", "Did you mean 'mine'?"]),
    Refused("studies.prune", ["small"], ["['small']", "`metrics` or `selectors` and `removed`"]),
    Refused("models", ["small"], ["['small']", "`key: value`"]),
]
MISSING_OR_CONTRADICTORY = [
    Refused(
        "calibrations.recall",
        {"limit": 3},
        ["`task`, `tasks`, `text`, `hub`, `mixture` or `choices`"],
    ),
    Refused(
        "benchmarks.perplexity.t",
        {"text": "x"},
        ["is missing", "Window length in tokens"],
        below=".window",
    ),
    Refused("benchmarks.perplexity.corpus_test.stride", 65, ["65 would skip tokens", "at most 64"]),
    Refused(
        "benchmarks.perplexity.mine", {"text": "microworld_corpus", "window": 64}, ["Rename one"]
    ),
]
MISSING_FILES = [
    Refused("models.small.source", "missing", ["there is no folder 'missing'", "Write the path"]),
    Refused(
        "models.small.source",
        "./missing/model",
        ["there is no folder './missing/model'", "Write the path"],
    ),
    Refused(
        "models.small.source",
        "/missing/model",
        ["there is no folder '/missing/model'", "Write the path"],
    ),
    Refused("models.small.source", "a/b/c", ["there is no folder 'a/b/c'", "Write the path"]),
    Refused("models.small.source", "small/config.json", ["is a file", "Write the folder"]),
    Refused(
        "models.hub",
        {"source": "org/model"},
        ["there is no folder 'org/model'", "add `revision:"],
        below=".source",
    ),
    Refused(
        "calibrations.corpus.text",
        "absent.jsonl",
        ["there is no file 'absent.jsonl'", "Write the path of"],
    ),
    Refused(
        "calibrations.mine.choices",
        "absent.jsonl",
        ["there is no file 'absent.jsonl'", "Write the path of"],
    ),
    Refused(
        "benchmarks.tasks.mine.choices",
        "absent.jsonl",
        ["there is no file 'absent.jsonl'", "Write the path of"],
    ),
    Refused(
        "benchmarks.perplexity.corpus_test.text",
        "absent.jsonl",
        ["there is no file 'absent.jsonl'"],
    ),
    Refused(
        "benchmarks.tasks",
        {"arc_eazy": {}},
        ["no task 'arc_eazy'", "arc_easy"],
        below=".arc_eazy",
    ),
]
WRONG_DATA_OF_REPAIRS_AND_HEALINGS = [
    Refused(
        "repairs.ghost.data", {"own": 1, "corpsu": 0.1}, ["'corpsu'", "Did you mean 'corpus'?"]
    ),
    Refused("repairs.ghost.data", {"corpus": 1}, ["own calibration is missing", "`own: 1`"]),
    Refused("repairs.ghost.data", {"own": 1, "corpus": 0}, ["weights above 0"]),
    Refused("repairs.ghost.data", {"own": 1, "corpus": "much"}, ["weights above 0"]),
    Refused("repairs.ghost.data", {"own": "auto", "corpus": 1}, ["`own: 1`"]),
    Refused("repairs.ghost.data", ["own"], ["['own']"]),
    Refused("healings.lora.data", "corpsu", ["'corpsu'", "Did you mean 'corpus'?"]),
    Refused(
        "healings.lora.data", {"own": 1, "corpsu": 0.1}, ["'corpsu'", "Did you mean 'corpus'?"]
    ),
    Refused("healings.lora.data", {"own": 1, "corpus": 0}, ["weights above 0"]),
    Refused("healings.lora.data", {}, ["weights above 0"]),
    Refused("healings.lora.data", ["own"], ["['own']"]),
]
REFUSED_VALUES = [
    *OUT_OF_BOUNDS,
    *MISSING_OR_CONTRADICTORY,
    *MISSING_FILES,
    *WRONG_DATA_OF_REPAIRS_AND_HEALINGS,
]


@pytest.mark.parametrize("refused", REFUSED_VALUES, ids=lambda case: f"{case.key}={case.value}")
def test_a_value_that_cannot_run_is_named_with_its_key_and_what_is_allowed(
    root: Path, refused: Refused
) -> None:
    message = refusal(root, {refused.key: refused.value})

    assert message.startswith(f"{refused.key}{refused.below}: ")
    for word in refused.words:
        assert word in message


def test_an_unknown_task_of_a_calibration_is_refused(root: Path) -> None:
    message = refusal(root, {"calibrations.recall.task": "microworld_recal"})

    assert "calibrations.recall: there is no task 'microworld_recal'" in message


def test_questions_that_calibrate_and_test_are_refused(root: Path) -> None:
    message = refusal(root, {"benchmarks.tasks.mine.choices": "./mine.jsonl"})

    assert "calibrations.mine.choices: 'mine.jsonl'" in message
    assert "benchmarks.tasks.mine" in message
    assert "Split the file" in message


def test_a_share_may_be_a_percentage(root: Path) -> None:
    loaded = load_configuration(configure({"report.keep": "95%"}), root)

    assert loaded.report.keep == 0.95


@pytest.mark.parametrize("section", ["models", "calibrations", "studies"])
def test_a_missing_section_is_named(root: Path, section: str) -> None:
    raw = minimal_config()
    del raw[section]

    with pytest.raises(LaminaError, match=rf"^{section}: is missing\. Add `{section}: \.\.\.`"):
        load_configuration(raw, root)


@pytest.mark.parametrize("empty", [None, {}, []])
def test_no_studies_are_refused(root: Path, empty: Any) -> None:
    message = refusal(root, {"studies": empty})

    assert message.startswith("studies: ")
    assert "Add one" in message


def test_a_calibration_has_one_source(root: Path) -> None:
    message = refusal(root, {"calibrations.recall.text": "microworld_corpus"})

    assert "calibrations.recall" in message
    assert "'task' and 'text'" in message
    assert "Keep one" in message


@pytest.mark.parametrize(
    ("key", "name", "nearest", "section"),
    [
        ("models", "smal", "small", "models"),
        ("calibrations", "recal", "recall", "calibrations"),
        ("selectors", "acuracy", "accuracy", "selectors"),
        ("repairs", "gost", "ghost", "repairs"),
        ("healings", "lra", "lora", "healings"),
        ("diagnoses", "variants", "variance", "diagnoses"),
        ("tasks", "microworld_recal", "microworld_recall", "benchmarks.tasks"),
        ("perplexity", "corpus", "corpus_test", "benchmarks.perplexity"),
    ],
)
def test_a_study_names_only_what_is_defined(
    root: Path, key: str, name: str, nearest: str, section: str
) -> None:
    message = refusal(root, {f"studies.prune.{key}": [name]})

    fault = f"'{name}' is not defined under `{section}`. Did you mean '{nearest}'?"
    assert f"studies.prune.{key}: {fault}" in message


@pytest.mark.parametrize(
    "section", ["models", "calibrations", "selectors", "repairs", "healings", "studies"]
)
@pytest.mark.parametrize("name", ["base", "none"])
def test_reserved_names_are_refused(root: Path, section: str, name: str) -> None:
    message = refusal(root, {f"{section}.{name}": {}})

    assert f"{section}.{name}" in message
    assert "is reserved" in message
    assert "Choose another name" in message


def test_names_that_differ_only_by_case_are_refused(root: Path) -> None:
    selector = {"metric": "cosine"}

    message = refusal(root, {"selectors.Mine": selector, "selectors.mine": selector})

    assert "'Mine' and 'mine' differ only in case" in message
    assert "Rename" in message


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".hidden", "-n", "with blank", "ä", "a=1", "", "x\n"]
)
def test_names_that_cannot_be_file_names_are_refused(root: Path, name: str) -> None:
    selectors = minimal_config()["selectors"] | {name: {"metric": "cosine"}}

    message = refusal(root, {"selectors": selectors})

    assert message.startswith(f"selectors: '{name}'")
    assert "letters, digits and _ . + -" in message


def test_a_name_that_yaml_reads_as_a_number_is_refused(root: Path) -> None:
    message = refusal(root, {"models": minimal_config()["models"] | {8: {"source": "small"}}})

    assert "models.8: YAML reads this name" in message
    assert "Quote it: '8'" in message


@pytest.mark.parametrize(
    ("selector", "removed", "words"),
    [
        (
            "accuracy",
            8,
            ["8 is more than", "'accuracy'", "'small'", "8 layers (none protected)", "at most 7"],
        ),
        ("accuracy", "100%", ["8 (100%) is more than", "at most 7"]),
        ("cosine", 7, ["7 is more than", "2 protected", "at most 6"]),
        ("angular", 8, ["8 is more than", "one run", "at most 7"]),
        ("deepest", 8, ["8 is more than", "the last layer is kept", "at most 7"]),
        ("random", 9, ["9 is more than", "at most 7"]),
        ("heads", 9, ["9 is more than", "at most 8"]),
    ],
)
def test_more_layers_than_can_be_removed_are_refused(
    root: Path, selector: str, removed: int | str, words: list[str]
) -> None:
    study = {
        "models": ["small"],
        "calibrations": ["recall"],
        "selectors": [selector],
        "removed": [1, removed],
    }

    message = refusal(root, {"studies.prune": study})

    assert message.startswith("studies.prune.removed: ")
    for word in words:
        assert word in message


ONLY_REMOVES = ["which only removes", "Write at least 1", "strategy given", "rearrange"]


@pytest.mark.parametrize("model", ["small", "hub"])  # of the second the depth is unknown
@pytest.mark.parametrize(
    ("selector", "size", "words"),
    [
        ({"metric": "cosine"}, 0, ["0 is not a size of selector 'moving'", *ONLY_REMOVES]),
        ({"strategy": "deepest"}, -2, ["-2 is not a size of selector 'moving'", *ONLY_REMOVES]),
        ({"strategy": "given", "layers": [7, 6]}, 0, ONLY_REMOVES),
        ({"strategy": "given", "layers": [7, 6], "edits": ["2-3x2", "4<>5"]}, -3, ["-2 to 0"]),
        ({"strategy": "given", "edits": ["2-3x3"]}, -3, ["Write -4."]),
        ({"strategy": "given", "edits": ["2-3x3"]}, 1, ["Write -4."]),
        (
            {"strategy": "rearrange", "metric": "perplexity"},
            -1,
            ["-1 is not a size", "Write 0 to "],
        ),
        ({"strategy": "rearrange", "metric": "perplexity", "moves": 0}, 0, ONLY_REMOVES),
    ],
)
def test_a_size_that_a_selector_has_for_no_model_is_refused(
    root: Path, model: str, selector: RawConfig, size: int, words: list[str]
) -> None:
    study = {
        "models": [model],
        "calibrations": ["recall"],
        "selectors": ["moving"],
        "removed": [size],
    }

    message = refusal(root, {"selectors.moving": selector, "studies.prune": study})

    assert message.startswith("studies.prune.removed: ")
    for word in words:
        assert word in message


def test_sizes_at_and_below_zero_go_with_strategies_that_move_layers(root: Path) -> None:
    selectors = {
        "twice": {"strategy": "given", "edits": ["2-3x2", "4<>5"]},
        "less": {"strategy": "given", "layers": [7, 6, 1], "edits": ["2-3x2"]},
        "otherwise": {"strategy": "rearrange", "metric": "perplexity"},
    }
    study = {"models": ["small"], "calibrations": ["recall"]}
    studies = {
        "twice": {**study, "selectors": ["twice"], "removed": [-2]},
        "less": {**study, "selectors": ["less"], "removed": [-2, -1, 0, 1]},
        "otherwise": {**study, "selectors": ["otherwise"], "removed": [0, 3, "25%"]},
    }

    config = load_configuration(configure({"selectors": selectors, "studies": studies}), root)

    sizes = {(variant.selector, variant.removed) for variant in list_variants(config)}
    assert sizes == {
        ("twice", -2),
        *(("less", size) for size in (-2, -1, 0, 1)),
        *(("otherwise", size) for size in (0, 2, 3)),
    }


FORTY_LAYERS_OF_A_HUB_MODEL = {"studies.prune.models": ["hub"], "studies.prune.removed": [40]}


def test_sizes_of_a_hub_model_are_read_where_its_layers_are_unknown(root: Path) -> None:
    load_configuration(configure(FORTY_LAYERS_OF_A_HUB_MODEL), root)


def test_sizes_of_a_hub_model_are_checked_where_its_layers_are_known(root: Path) -> None:
    message = refusal(root, FORTY_LAYERS_OF_A_HUB_MODEL | {"models.hub.layers": 32})

    assert "at most 31" in message


def test_a_folder_without_config_is_no_model(root: Path) -> None:
    (root / "empty").mkdir()

    message = refusal(root, {"models.small.source": "empty"})

    assert "models.small.source: the folder 'empty' has no config.json" in message
    assert "Write the folder" in message


def test_a_family_that_contradicts_the_folder_is_refused(root: Path) -> None:
    write_model_folder(root / "gpt", {"num_hidden_layers": 5, "model_type": "gpt2"})

    message = refusal(root, {"models.small": {"source": "gpt", "family": "llama"}})

    assert "models.small.family" in message
    assert "says gpt2, not llama" in message
    assert "Leave `family` out" in message


# A selector, and words of the message.
SELECTOR_MISMATCHES = [
    ("metric: accuracy, strategy: block", ["metric: 'accuracy'", "angular or cosine"]),
    (
        "metric: cosine, strategy: block, units: both",
        ["units: 'both'", "strategy: iterative"],
    ),
    ("metric: cosine, strategy: block, units: mlp", ["units: 'mlp'", "units: layer"]),
    (
        "metric: cosine, cost: latency, units: mlp",
        ["cost: latency", "units: mlp all units count the same", "units: both"],
    ),
    (
        "metric: cosine, strategy: deepest",
        ["metric: 'cosine'", "'deepest'", "Leave `metric` out"],
    ),
    (
        "metric: accuracy, strategy: random",
        ["metric: 'accuracy'", "'random'", "Leave `metric` out"],
    ),
    (
        "strategy: iterative",
        ["metric: is missing", "'iterative'", "Write metric: accuracy"],
    ),
    (
        "strategy: block",
        ["metric: is missing", "'block'", "Write metric: angular or cosine"],
    ),
    (
        "metric: cosine, strategy: block, seed: 3",
        [
            "seed: 3 does not go with strategy 'block'",
            "iterative, one_shot, pairwise, portfolio",
        ],
    ),
    (
        "strategy: deepest, seed: 3",
        [
            "seed: 3 does not go with strategy 'deepest'",
            "iterative, one_shot, pairwise, portfolio, random, rearrange or repeat",
        ],
    ),
    (
        "metric: cosine, repair: ghost",
        [
            "repair: 'ghost'",
            "metric 'cosine'",
            "Write metric: acceptance, accuracy, ",
            "or leave `repair` out",
        ],
    ),
    (
        "metric: taylor, strategy: one_shot, repair: ghost",
        ["repair: 'ghost'", "metric 'taylor'", "not measured with a repair in place"],
    ),
    (
        "metric: accuracy, repair: gost",
        ["repair: 'gost' is not defined", "Did you mean 'ghost'?"],
    ),
    (
        "metric: accuracy, also: {corpsu: 1}",
        ["also: 'corpsu' is not defined", "Did you mean 'corpus'?"],
    ),
    ("metric: accuracy, also: {corpus: 0}", ["also", "weights above 0"]),
    (
        "metric: taylor, also: {corpus: 1}",
        [
            "also: scores by 'taylor'",
            "accuracy, agreement, angular, cosine",
            "or leave `also` out",
        ],
    ),
    (
        "strategy: deepest, also: {corpus: 1}",
        ["also:", "'deepest'", "iterative, one_shot or portfolio"],
    ),
    (
        "strategy: deepest, repair: ghost",
        ["repair: 'ghost'", "'deepest'", "only with iterative or one_shot"],
    ),
    (
        "metric: cosine, strategy: pairwise",
        [
            "metric: 'cosine'",
            "which is what strategy 'pairwise' compares",
            "accuracy, ",
        ],
    ),
    ("strategy: pairwise", ["metric: is missing", "perplexity or output_kl"]),
    ("strategy: portfolio, sets: [2, 1]", ["sets[0]: 2 is not allowed"]),
    (
        "metric: accuracy, reach: 3",
        ["reach: 3", "'iterative'", "only with rearrange"],
    ),
    (
        "metric: accuracy, strategy: pairwise, held_back: 1",
        ["held_back: 1 is not allowed", "below 1"],
    ),
]


@pytest.mark.parametrize(("selector", "words"), SELECTOR_MISMATCHES)
def test_metrics_and_strategies_that_do_not_fit_are_refused(
    root: Path, selector: str, words: list[str]
) -> None:
    message = refusal(root, {"selectors.odd": yaml.safe_load(f"{{{selector}}}")})

    assert message.startswith("selectors.odd.")
    for word in words:
        assert word in message


def test_a_repair_that_is_no_linear_map_is_refused_in_the_loop(root: Path) -> None:
    message = refusal(
        root,
        {
            "repairs.fold": {"method": "replaceme"},
            "selectors.odd": {"metric": "accuracy", "repair": "fold"},
        },
    )

    assert message.startswith("selectors.odd.repair: 'fold' uses method 'replaceme'")
    assert "not a linear map of the stream" in message
    assert "or leave `repair` out" in message


def test_a_repair_that_is_fitted_again_is_refused_in_the_loop(root: Path) -> None:
    message = refusal(
        root,
        {
            "repairs.chain": {"method": "ghost", "refit": True},
            "selectors.odd": {"metric": "accuracy", "repair": "chain"},
        },
    )

    assert message.startswith("selectors.odd.repair: 'chain' has `refit: true`")
    assert "without `refit`" in message


def test_a_patch_repairs_removed_sublayers(root: Path) -> None:
    study = {"studies.prune.selectors": ["heads"], "studies.prune.repairs": ["ghost"]}

    load_configuration(configure(study), root)


def test_a_repair_that_is_folded_into_weights_needs_whole_layers(root: Path) -> None:
    message = refusal(
        root,
        {
            "repairs.fold": {"method": "replaceme"},
            "studies.prune.selectors": ["heads"],
            "studies.prune.repairs": ["fold"],
        },
    )

    assert message.startswith("studies.prune.repairs: 'fold' is folded into weights")
    assert "'heads' removes attention units" in message
    assert "ghost or linearpatch" in message


@pytest.fixture
def text_root(root: Path) -> Path:
    """A workplace with a text of 400 documents."""
    (root / "text.json").write_text(json.dumps(["a"] * 400))
    return root


def share_text(documents: str | None) -> RawConfig:
    """A text is calibrated on documents 0:300 and tested on these."""
    test_text = {"text": "text.json", "documents": documents, "window": 64}
    return {
        "calibrations.corpus": {"text": "text.json", "documents": "0:300"},
        "benchmarks.perplexity.corpus_test": test_text,
    }


def test_texts_that_calibrate_and_test_are_refused(text_root: Path) -> None:
    message = refusal(text_root, share_text("299:400"))

    assert "calibrations.corpus.documents: 0:300" in message
    assert "299:400" in message
    assert "do not overlap" in message


def test_a_whole_text_that_tests_is_refused_for_a_calibration(text_root: Path) -> None:
    message = refusal(text_root, share_text(None))

    assert "documents all of benchmarks.perplexity.corpus_test" in message


def test_disjoint_documents_of_a_text_may_calibrate_and_test(text_root: Path) -> None:
    load_configuration(configure(share_text("300:")), text_root)


WIKI = {"hub": "lab/wiki", "name": "raw", "revision": "main", "split": "validation"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"hub": "lab/wiki", "window": 64}, "add `revision: <commit, tag or branch>`"),
        ({"hub": "nowhere", "window": 64}, "there is no folder 'nowhere'"),
        ({"hub": "lab/wiki", "text": "a.txt", "window": 64}, "has both 'text' and 'hub'"),
        ({"window": 64}, "Give it `text` or `hub`"),
        ({**WIKI}, "wiki.window: is missing"),
        ({**WIKI, "window": 64, "length": 32}, "wiki.length: there is no such key"),
        ({**WIKI, "window": 64, "joined": "", "stride": 8}, "joined documents do not overlap"),
        ({**WIKI, "window": 64, "template": "text"}, "names of fields in braces"),
        (
            {**WIKI, "window": 64, "documents": "299:"},
            "0:300 of 'lab/wiki' overlaps with documents",
        ),
    ],
)
def test_a_perplexity_on_data_of_the_hub_that_cannot_be_is_refused(
    root: Path, entry: RawConfig, words: str
) -> None:
    changes = {"calibrations.lines": {**WIKI, "documents": "0:300"}}

    message = refusal(root, changes | {"benchmarks.perplexity.wiki": entry})

    assert words in message


@pytest.mark.parametrize("change", [{"documents": "300:"}, {"split": "test"}, {"joined": "\n"}])
def test_other_data_of_the_hub_may_test(root: Path, change: RawConfig) -> None:
    """Joined documents are counted with the empty ones: jobs compare what is read."""
    raw = configure(
        {
            "calibrations.lines": {**WIKI, "documents": "0:300"},
            "benchmarks.perplexity.wiki": {**WIKI, "window": 64, **change},
        }
    )

    load_configuration(raw, root)


def test_a_weight_may_be_chosen_by_the_job_that_fits_a_patch(root: Path) -> None:
    raw = configure({"repairs.ghost.data": {"own": 1, "corpus": "auto"}})

    loaded = load_configuration(raw, root)

    assert loaded.repairs["ghost"].automatic("recall") == ["corpus"]


def test_a_weight_of_a_repair_that_no_pass_can_try_is_not_chosen(root: Path) -> None:
    repair = {"method": "replaceme", "data": {"own": 1, "corpus": "auto"}}

    message = refusal(root, {"repairs.ghost": repair})

    assert "repairs.ghost.data: 'auto'" in message
    assert "'replaceme'" in message
    assert "0.1" in message


@pytest.mark.parametrize("train", ["patch", "both"])
def test_patches_are_trained_where_every_repair_leaves_one(root: Path, train: str) -> None:
    changes = {"healings.lora.train": train, "studies.prune.repairs": ["ghost"]}

    load_configuration(configure(changes), root)


@pytest.mark.parametrize("train", ["patch", "both"])
def test_patches_are_not_trained_where_there_may_be_none(root: Path, train: str) -> None:
    message = refusal(root, {"healings.lora.train": train})

    assert "studies.prune.healings: 'lora'" in message


@pytest.mark.parametrize("train", ["patch", "both"])
@pytest.mark.parametrize("method", ["replaceme", "streamline"])
def test_patches_are_not_trained_where_a_repair_leaves_none(
    root: Path, train: str, method: str
) -> None:
    message = refusal(
        root,
        {
            "repairs.ghost": {"method": method},
            "healings.lora.train": train,
            "studies.prune.repairs": ["ghost"],
        },
    )

    assert "'ghost' is folded into weights and leaves no patch" in message
    assert "write train: lora" in message


@pytest.mark.parametrize("key", ["repairs.ghost.data", "healings.lora.data"])
def test_a_text_that_a_repair_or_healing_adds_fits_the_context(root: Path, key: str) -> None:
    write_model_folder(root / "short", {"num_hidden_layers": 8, "max_position_embeddings": 100})
    model = {"models.small.source": "short"}

    load_configuration(configure(model), root)

    message = refusal(root, model | {key: {"own": 1, "corpus": 0.1}})
    assert "calibrations.corpus.length: 128" in message


OWN_TASKS = {"studies.prune.tasks": "own", "studies.prune.perplexity": []}


def test_own_tasks_of_calibrations_with_tasks_are_read(root: Path) -> None:
    load_configuration(configure(OWN_TASKS), root)


def test_own_tasks_of_a_calibration_without_one_are_refused(root: Path) -> None:
    calibrations = {"studies.prune.calibrations": ["recall", "corpus"]}

    message = refusal(root, OWN_TASKS | calibrations)

    assert "studies.prune.tasks: 'own'" in message
    assert "'corpus'" in message
    assert "tasks: all" in message


def test_an_own_task_that_is_no_benchmark_is_refused_with_the_nearest_name(root: Path) -> None:
    benchmarks = {
        "studies.prune.calibrations": ["recall"],
        "benchmarks.tasks": {"microworld_recal": {}},
    }

    message = refusal(root, OWN_TASKS | benchmarks)

    assert "called 'microworld_recall'. Did you mean 'microworld_recal'?" in message


def test_own_questions_are_tested_under_the_name_of_their_calibration(root: Path) -> None:
    benchmarks = {
        "studies.prune.calibrations": ["mine"],
        "benchmarks.tasks": {"other": {"choices": "mine_test.jsonl"}},
    }

    message = refusal(root, OWN_TASKS | benchmarks)

    assert "called 'mine'" in message
    assert "under the name of their calibration" in message

"""What the author of a configuration is told when it cannot run: the key, its value, and what to write instead."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.errors import LaminaError
from lamina_workflow.checks import load
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


def refusal(raw: RawConfig, root: Path) -> str:
    with pytest.raises(LaminaError) as caught:
        load.load_configuration(raw, root)
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


@pytest.mark.parametrize("where", UNKNOWN_KEYS)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_key(root: Path, where: str) -> None:
    message = refusal(set_key(minimal_config(), where, 4), root)
    assert message.startswith(f"{where}: there is no such key") and UNKNOWN_KEYS[where] in message


# A place, what is written there, the place that the message begins with (from that one on), and words of the message.
REFUSED: list[tuple[str, Any, str, list[str]]] = [
    # Another type, or out of bounds.
    ("seed", -1, "", ["-1", "a whole number of at least 0"]),
    ("seed", 0.5, "", ["0.5", "a whole number of at least 0"]),
    (
        "models.small.dtype",
        "float23",
        "",
        ["'float23'", "float32, bfloat16", "Did you mean 'float32'?"],
    ),
    ("models.small.trust_remote_code", 3, "", ["3", "true or false"]),
    ("calibrations.recall.limit", "many", "", ["'many'", "a whole number of at least 1 or null"]),
    ("calibrations.recall.limit", 0, "", ["0", "of at least 1"]),
    ("calibrations.recall.limit", True, "", ["true", "a whole number"]),
    ("calibrations.recall.split", "test", "", ["'test'", "not test"]),
    ("calibrations.recall.score", "f1", "", ["'f1'", "acc_norm, acc"]),
    ("calibrations.mixture.fraction", 1.5, "", ["1.5", "above 0 and up to 1"]),
    ("calibrations.corpus.documents", "500", "", ["'500'", '"0:500"']),
    ("calibrations.corpus.documents", 500, "", ["500", '"0:500"']),
    (
        "calibrations.corpus.documents",
        "30:10",
        "",
        ['"30:10" holds no document', 'such as "10:30"'],
    ),
    ("calibrations.corpus.documents", "7:7", "", ['"7:7" holds no document', 'such as "7:8"']),
    (
        "benchmarks.perplexity.corpus_test.documents",
        "9:3",
        "",
        ['"9:3" holds no document', '"3:9"'],
    ),
    ("repairs.ghost.method", "gost", "", ["'gost'", "Write one of ghost, ", "mean 'ghost'?"]),
    ("diagnoses.variance.kind", None, "", ["is missing", "Write one of patching"]),
    ("diagnoses.variance.skip_first", 0, "", ["0", "of at least 1"]),
    ("selectors.accuracy.strategy", None, "", ["null is not allowed", "one of block"]),
    ("selectors.accuracy.metric", "acuracy", "", ["'acuracy'", "angular, cosine"]),
    (
        "selectors.accuracy.strategy",
        "greedy",
        "",
        ["'greedy'", "deepest, evolutionary, iterative, one_shot"],
    ),
    ("selectors.accuracy.units", "head", "", ["'head'", "layer, attention, mlp"]),
    ("selectors.accuracy.protect", ["first"], "[0]", ["'first'", "a whole number"]),
    ("repairs.ghost.ridge", -1, "", ["-1", "validated, or a number of at least 0"]),
    ("repairs.ghost.ridge", "valid", "", ["'valid'", "validated"]),
    ("healings.lora.dropout", 1, "", ["1", "of at least 0 and below 1"]),
    ("healings.lora.learning_rate", float("nan"), "", ["nan", "a number above 0"]),
    ("benchmarks.efficiency", 3, "", ["3", "mapping"]),
    ("studies.prune.removed", [0], "[0]", ["0", "at least 1", "25%"]),
    ("studies.prune.removed", [1, "a few"], "[1]", ["'a few'", "25%"]),
    ("studies.prune.removed", ["0%"], "[0]", ["'0%'", "25%"]),
    ("studies.prune.removed", "some", "", ["'some'", "a list such as"]),
    ("studies.prune.removed", ["6 parsecs"], "[0]", ["'6 parsecs'", "{memory: 6GB}"]),
    ("studies.prune.removed", [], "", ["[]", "with at least one entry"]),
    ("studies.maps.metrics", [], "", ["[]", "a list of metrics", "diagnoses"]),
    ("studies.prune.models", [], "", ["[]", "with at least one entry"]),
    ("studies.prune.tasks", "mnie", "", ["'mnie' is not defined", "Did you mean 'mine'?"]),
    ("studies.maps.metrics", ["accuraci"], "[0]", ["'accuraci'", "angular, cosine"]),
    ("models", ["small"], "", ["['small']", "`key: value`"]),
    ("studies.prune", ["small"], "", ["['small']", "`metrics` or `selectors` and `removed`"]),
    (
        "calibrations.recall",
        {"limit": 3},
        "",
        ["`task`, `tasks`, `text`, `hub`, `mixture` or `choices`"],
    ),
    # Missing, or in the way of another.
    (
        "benchmarks.perplexity.t",
        {"text": "x"},
        ".window",
        ["is missing", "Tokens the model sees at once"],
    ),
    ("benchmarks.perplexity.corpus_test.stride", 65, "", ["65 would skip tokens", "at most 64"]),
    ("benchmarks.perplexity.mine", {"text": "microworld_corpus", "window": 64}, "", ["Rename one"]),
    (
        *("benchmarks.tasks.mine.choices", "./mine.jsonl", None),
        ["calibrations.mine.choices: 'mine.jsonl'", "benchmarks.tasks.mine", "Split the file"],
    ),
    ("selectors.accuracy.protect", [8], "", ["8 is not a layer of 'small'", "Write 0 to 7"]),
    # No such model or file.
    *(
        ("models.small.source", name, "", [f"there is no folder '{name}'", "Write the path"])
        for name in ("missing", "./missing/model", "/missing/model", "a/b/c")
    ),
    (
        "models.hub",
        {"source": "org/model"},
        ".source",
        ["there is no folder 'org/model'", "add `revision:"],
    ),
    *(
        (f"{where}", "absent.jsonl", "", ["there is no file 'absent.jsonl'", "Write the path of"])
        for where in (
            "calibrations.corpus.text",
            "calibrations.mine.choices",
            "benchmarks.tasks.mine.choices",
        )
    ),
    (
        "benchmarks.perplexity.corpus_test.text",
        "absent.jsonl",
        "",
        ["there is no file 'absent.jsonl'"],
    ),
    ("report", {"keep": "950%"}, ".keep", ["'950%'", "up to 1"]),
    ("models.small.source", "small/config.json", "", ["is a file", "Write the folder"]),
    # Tasks that nobody has.
    ("benchmarks.tasks", {"arc_eazy": {}}, ".arc_eazy", ["no task 'arc_eazy'", "arc_easy"]),
    (
        "calibrations.recall.task",
        "microworld_recal",
        None,
        ["calibrations.recall: there is no task 'microworld_recal'"],
    ),
    # What repairs are fitted on, and healings trained on.
    ("repairs.ghost.data", {"own": 1, "corpsu": 0.1}, "", ["'corpsu'", "Did you mean 'corpus'?"]),
    ("repairs.ghost.data", {"corpus": 1}, "", ["own calibration is missing", "`own: 1`"]),
    ("repairs.ghost.data", {"own": 1, "corpus": 0}, "", ["weights above 0"]),
    ("repairs.ghost.data", {"own": 1, "corpus": "much"}, "", ["weights above 0"]),
    ("repairs.ghost.data", {"own": "auto", "corpus": 1}, "", ["`own: 1`"]),
    ("repairs.ghost.data", ["own"], "", ["['own']"]),
    (
        *(
            "healings.lora",
            {"method": "lora", "max_steps": 50, "warmup_steps": 100},
            ".warmup_steps",
        ),
        ["100 is not less than max_steps, 50", "at most 5"],
    ),
    ("healings.lora.data", "corpsu", "", ["'corpsu'", "Did you mean 'corpus'?"]),
    ("healings.lora.data", {"own": 1, "corpsu": 0.1}, "", ["'corpsu'", "Did you mean 'corpus'?"]),
    ("healings.lora.data", {"own": 1, "corpus": 0}, "", ["weights above 0"]),
    ("healings.lora.data", {}, "", ["weights above 0"]),
    ("healings.lora.data", ["own"], "", ["['own']"]),
]


@pytest.mark.parametrize(
    ("where", "value", "at", "words"), REFUSED, ids=[f"{case[0]}={case[1]}" for case in REFUSED]
)
def test_what_cannot_run_is_named_with_its_key_and_what_is_allowed(
    root: Path, where: str, value: Any, at: str | None, words: list[str]
) -> None:
    message = refusal(set_key(minimal_config(), where, value), root)
    assert at is None or message.startswith(f"{where}{at}: "), message
    assert all(word in message for word in words), message


def test_a_share_may_be_a_percentage(root: Path) -> None:
    assert (
        load.load_configuration(
            set_key(minimal_config(), "report", {"keep": "95%"}), root
        ).report.keep
        == 0.95
    )


@pytest.mark.parametrize("key", ["models", "calibrations", "studies"])
def test_a_missing_section_is_named(root: Path, key: str) -> None:
    raw = minimal_config()
    del raw[key]
    message = refusal(raw, root)
    assert message.startswith(f"{key}: is missing. Add `{key}: ...`"), message


@pytest.mark.parametrize("empty", [None, {}, []])
def test_no_studies_are_refused(root: Path, empty: Any) -> None:
    message = refusal(set_key(minimal_config(), "studies", empty), root)
    assert message.startswith("studies: ") and "Add one" in message


def test_a_calibration_is_made_of_one_thing(root: Path) -> None:
    message = refusal(
        set_key(minimal_config(), "calibrations.recall.text", "microworld_corpus"), root
    )
    assert (
        "calibrations.recall" in message
        and "'task' and 'text'" in message
        and "Keep one" in message
    )


@pytest.mark.parametrize(
    ("key", "name", "near", "section"),
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
    root: Path, key: str, name: str, near: str, section: str
) -> None:
    message = refusal(set_key(minimal_config(), f"studies.prune.{key}", [name]), root)
    assert (
        f"studies.prune.{key}: '{name}' is not defined under `{section}`. Did you mean '{near}'?"
        in message
    )


@pytest.mark.parametrize(
    "section", ["models", "calibrations", "selectors", "repairs", "healings", "studies"]
)
@pytest.mark.parametrize("name", ["base", "none"])
def test_reserved_names_are_refused(root: Path, section: str, name: str) -> None:
    message = refusal(set_key(minimal_config(), f"{section}.{name}", {}), root)
    assert (
        f"{section}.{name}" in message
        and "is reserved" in message
        and "Choose another name" in message
    )


def test_names_that_differ_only_by_case_are_refused(root: Path) -> None:
    raw = minimal_config()
    raw["selectors"] |= {"Mine": {"metric": "cosine"}, "mine": {"metric": "cosine"}}
    message = refusal(raw, root)
    assert "'Mine' and 'mine' differ only by case" in message and "Rename" in message


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".hidden", "-n", "with blank", "ä", "a=1", "", "x\n"]
)
def test_names_that_cannot_be_file_names_are_refused(root: Path, name: str) -> None:
    raw = minimal_config()
    raw["selectors"][name] = {"metric": "cosine"}
    message = refusal(raw, root)
    assert message.startswith(f"selectors: '{name}'") and "letters, digits and _ . + -" in message


def test_a_name_that_yaml_reads_as_a_number_is_refused(root: Path) -> None:
    raw = minimal_config()
    raw["models"][8] = {"source": "small"}
    assert (
        "models.8: YAML reads this name" in (message := refusal(raw, root))
        and "Quote it: '8'" in message
    )


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
        ("deepest", 8, ["8 is more than", "the last layer stays", "at most 7"]),
        ("random", 9, ["9 is more than", "at most 7"]),
        ("heads", 9, ["9 is more than", "at most 8"]),
    ],
)
def test_more_layers_than_can_go_are_refused(
    root: Path, selector: str, removed: int | str, words: list[str]
) -> None:
    study = {
        "models": ["small"],
        "calibrations": ["recall"],
        "selectors": [selector],
        "removed": [1, removed],
    }
    message = refusal(set_key(minimal_config(), "studies.prune", study), root)
    assert message.startswith("studies.prune.removed: ")
    assert all(word in message for word in words), message


def test_sizes_of_a_hub_model_are_checked_where_its_layers_are_known(root: Path) -> None:
    raw = set_key(minimal_config(), "studies.prune.models", ["hub"])
    set_key(raw, "studies.prune.removed", [40])
    assert load.load_configuration(copy.deepcopy(raw), root)
    assert "at most 31" in refusal(set_key(raw, "models.hub.layers", 32), root)


def test_a_folder_without_config_is_no_model(root: Path) -> None:
    (root / "empty").mkdir()
    message = refusal(set_key(minimal_config(), "models.small.source", "empty"), root)
    assert (
        "models.small.source: the folder 'empty' has no config.json" in message
        and "Write the folder" in message
    )


def test_a_family_that_contradicts_the_folder_is_refused(root: Path) -> None:
    write_model_folder(root / "told", {"num_hidden_layers": 5, "model_type": "gpt2"})
    message = refusal(
        set_key(minimal_config(), "models.small", {"source": "told", "family": "llama"}), root
    )
    assert (
        "models.small.family" in message
        and "says gpt2, not llama" in message
        and "Leave `family` out" in message
    )


# A selector, and words of the message.
SELECTOR_MISMATCHES = [
    ("metric: accuracy, strategy: block", "metric: 'accuracy' | angular or cosine"),
    ("metric: cosine, strategy: block, units: both", "units: 'both' | strategy: iterative"),
    (
        "metric: cosine, cost: latency, units: mlp",
        "cost: latency | units: mlp all units count the same | units: both",
    ),
    ("metric: cosine, strategy: block, units: mlp", "units: 'mlp' | units: layer"),
    ("metric: cosine, strategy: deepest", "metric: 'cosine' | 'deepest' | Leave `metric` out"),
    ("metric: accuracy, strategy: random", "metric: 'accuracy' | 'random' | Leave `metric` out"),
    ("strategy: iterative", "metric: is missing | 'iterative' | Write metric: accuracy"),
    ("strategy: block", "metric: is missing | 'block' | Write metric: angular or cosine"),
    (
        "metric: cosine, strategy: one_shot, seed: 3",
        "seed: 3 does not go with strategy 'one_shot' | evolutionary, iterative, pairwise",
    ),
    (
        "strategy: deepest, seed: 3",
        "seed: 3 does not go with strategy 'deepest' | evolutionary, iterative, pairwise, portfolio or random",
    ),
    (
        "metric: cosine, repair: ghost",
        "repair: 'ghost' | metric 'cosine' | Write metric: acceptance, accuracy,  | or leave `repair` out",
    ),
    (
        "metric: taylor, strategy: one_shot, repair: ghost",
        "repair: 'ghost' | metric 'taylor' | not measured by removing units",
    ),
    ("metric: residual, units: mlp", "units: 'mlp' | 'residual' | runs of whole layers"),
    ("metric: accuracy, repair: gost", "repair: 'gost' is not defined | Did you mean 'ghost'?"),
    (
        "metric: accuracy, also: {corpsu: 1}",
        "also: 'corpsu' is not defined | Did you mean 'corpus'?",
    ),
    ("metric: accuracy, also: {corpus: 0}", "also | weights above 0"),
    (
        "metric: taylor, also: {corpus: 1}",
        "also: scores by 'taylor' | accuracy, agreement, angular, cosine | or leave `also` out",
    ),
    (
        "strategy: deepest, also: {corpus: 1}",
        "also: | 'deepest' | iterative, one_shot or portfolio",
    ),
    (
        "strategy: deepest, repair: ghost",
        "repair: 'ghost' | 'deepest' | evolutionary, iterative or one_shot",
    ),
    (
        "metric: cosine, strategy: evolutionary",
        "metric: 'cosine' | which is what strategy 'evolutionary' compares | accuracy, ",
    ),
    ("strategy: evolutionary", "metric: is missing | accuracy or output_kl"),
    (
        "metric: accuracy, strategy: evolutionary, stages: [[2, 10], [2, 20]]",
        "stages: [[2, 10], [2, 20]] keeps 2, 2 | the last one 1",
    ),
    ("metric: accuracy, strategy: evolutionary, stages: [2, 1]", "stages[0]: 2 is not allowed"),
    ("metric: accuracy, offspring: 3", "offspring: 3 | 'iterative' | only with evolutionary"),
    (
        "metric: accuracy, strategy: evolutionary, held_back: 1",
        "held_back: 1 is not allowed | below 1",
    ),
]


@pytest.mark.parametrize(("selector", "words"), SELECTOR_MISMATCHES)
def test_metrics_and_strategies_that_do_not_fit_are_refused(
    root: Path, selector: str, words: str
) -> None:
    message = refusal(
        set_key(minimal_config(), "selectors.odd", yaml.safe_load(f"{{{selector}}}")), root
    )
    assert message.startswith("selectors.odd.")
    assert all(word in message for word in words.split(" | ")), message


def test_a_repair_that_no_pass_can_hold_is_refused_in_the_loop(root: Path) -> None:
    raw = set_key(minimal_config(), "repairs.fold", {"method": "replaceme"})
    message = refusal(set_key(raw, "selectors.odd", {"metric": "accuracy", "repair": "fold"}), root)
    assert message.startswith("selectors.odd.repair: 'fold' uses method 'replaceme'")
    assert "not a linear map of the stream" in message and "or leave `repair` out" in message
    raw = set_key(minimal_config(), "repairs.chain", {"method": "ghost", "refit": True})
    message = refusal(
        set_key(raw, "selectors.odd", {"metric": "accuracy", "repair": "chain"}), root
    )
    assert (
        message.startswith("selectors.odd.repair: 'chain' has `refit: true`")
        and "without `refit`" in message
    )


def test_a_repair_that_is_folded_into_weights_needs_whole_layers(root: Path) -> None:
    raw = set_key(
        set_key(minimal_config(), "studies.prune.selectors", ["heads"]),
        "studies.prune.repairs",
        ["ghost"],
    )
    assert load.load_configuration(copy.deepcopy(raw), root)
    raw = set_key(
        set_key(raw, "repairs.fold", {"method": "replaceme"}), "studies.prune.repairs", ["fold"]
    )
    message = refusal(raw, root)
    assert message.startswith("studies.prune.repairs: 'fold' is folded into weights")
    assert "'heads' removes attention units" in message and "ghost or linearpatch" in message


def test_texts_are_not_calibrated_on_and_tested(root: Path) -> None:
    (root / "text.json").write_text(json.dumps(["a"] * 400))
    raw = set_key(
        minimal_config(), "calibrations.corpus", {"text": "text.json", "documents": "0:300"}
    )
    set_key(
        raw,
        "benchmarks.perplexity.corpus_test",
        {"text": "text.json", "documents": "299:400", "window": 64},
    )
    message = refusal(copy.deepcopy(raw), root)
    assert (
        "calibrations.corpus.documents: 0:300" in message
        and "299:400" in message
        and "do not overlap" in message
    )
    set_key(raw, "benchmarks.perplexity.corpus_test.documents", None)
    assert "documents all of benchmarks.perplexity.corpus_test" in refusal(copy.deepcopy(raw), root)
    set_key(raw, "benchmarks.perplexity.corpus_test.documents", "300:")
    assert load.load_configuration(raw, root)


def test_a_weight_is_left_open_only_where_repairs_can_be_tried_in_one_pass(root: Path) -> None:
    raw = set_key(minimal_config(), "repairs.ghost.data", {"own": 1, "corpus": "auto"})
    assert load.load_configuration(copy.deepcopy(raw), root).repairs["ghost"].automatic(
        "recall"
    ) == ["corpus"]
    message = refusal(set_key(raw, "repairs.ghost.method", "replaceme"), root)
    assert all(word in message for word in ("repairs.ghost.data: 'auto'", "'replaceme'", "0.1")), (
        message
    )


@pytest.mark.parametrize("train", ["patch", "both"])
def test_patches_are_trained_only_where_every_repair_leaves_some(root: Path, train: str) -> None:
    raw = set_key(minimal_config(), "healings.lora.train", train)
    assert "studies.prune.healings: 'lora'" in refusal(copy.deepcopy(raw), root)
    set_key(raw, "studies.prune.repairs", ["ghost"])
    assert load.load_configuration(copy.deepcopy(raw), root)
    for method in ("replaceme", "streamline"):
        set_key(raw, "repairs.ghost", {"method": method})
        message = refusal(copy.deepcopy(raw), root)
        assert (
            "'ghost' is folded into weights and leaves no patch" in message
            and "write train: lora" in message
        )


def test_a_text_that_a_repair_adds_fits_the_context(root: Path) -> None:
    write_model_folder(root / "short", {"num_hidden_layers": 8, "max_position_embeddings": 100})
    raw = set_key(minimal_config(), "models.small.source", "short")
    assert load.load_configuration(copy.deepcopy(raw), root)
    for where in ("repairs.ghost.data", "healings.lora.data"):
        added = set_key(copy.deepcopy(raw), where, {"own": 1, "corpus": 0.1})
        assert "calibrations.corpus.length: 128" in refusal(added, root)


def test_own_tasks_that_measure_nothing_are_refused(root: Path) -> None:
    raw = set_key(minimal_config(), "studies.prune.tasks", "own")
    set_key(raw, "studies.prune.perplexity", [])
    assert load.load_configuration(copy.deepcopy(raw), root)
    message = refusal(set_key(raw, "studies.prune.calibrations", ["recall", "corpus"]), root)
    assert (
        "studies.prune.tasks: 'own'" in message
        and "'corpus'" in message
        and "tasks: all" in message
    )
    set_key(raw, "studies.prune.calibrations", ["recall"])
    message = refusal(set_key(raw, "benchmarks.tasks", {"microworld_recal": {}}), root)
    assert "called 'microworld_recall'. Did you mean 'microworld_recal'?" in message
    set_key(raw, "studies.prune.calibrations", ["mine"])
    message = refusal(
        set_key(raw, "benchmarks.tasks", {"other": {"choices": "mine_test.jsonl"}}), root
    )
    assert "called 'mine'" in message and "under the name of their calibration" in message

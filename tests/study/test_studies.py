"""What studies ask for: variants, plans, patches, benchmark jobs."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.engine.sweep import share_by_cost
from lamina.models.units import all_units
from lamina.options.metrics import METRICS, MODULES, carried_passes, passes_of
from lamina.variant import Variant
from lamina_workflow.checks import load
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study import requests, sweeps
from tests.given.configurations import write_model_and_data

SOURCE = Path(__file__).resolve().parents[2] / "src"
Raw = dict[str, Any]

STUDIES = """
models:
  small: {source: small}
  other: {source: org/other, revision: main, layers: 16}
calibrations:
  recall: {task: microworld_recall}
  mixture: {tasks: [microworld_recall, microworld_facts, microworld_hops]}
  corpus: {text: microworld_corpus}
  mine: {choices: mine.jsonl}
selectors:
  accuracy: {metric: accuracy}
  once: {metric: perplexity, strategy: one_shot}
  cosine: {metric: cosine}
  block: {metric: angular, strategy: block}
  deepest: {strategy: deepest}
  random: {strategy: random}
  heads: {metric: cosine, units: attention}
repairs:
  ghost: {method: ghost}
  affine: {method: ghost, bias: true}
healings:
  lora: {method: lora}
benchmarks:
  tasks: {microworld_recall: {}, microworld_facts: {}, mine: {choices: mine_test.jsonl}}
  perplexity: {corpus_test: {text: microworld_corpus, window: 64}}
  efficiency: {}
benchmark: {blocks: 3}
studies:
  maps: {models: [small], calibrations: [recall, corpus], metrics: [accuracy, cosine]}
  prune:
    models: [small]
    calibrations: [recall, corpus]
    selectors: [accuracy, cosine]
    removed: [1, 2, 25%]
    repairs: [none, ghost]
    tasks: own
  shares:
    models: [small, other]
    calibrations: [recall]
    selectors: [accuracy]
    removed: [25%]
    healings: [none, lora]
    tasks: [microworld_facts]
    perplexity: []
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_model_and_data(tmp_path)


@pytest.fixture
def raw() -> Raw:
    loaded: Raw = yaml.safe_load(STUDIES)
    return loaded


@pytest.fixture
def config(raw: Raw, root: Path) -> Configuration:
    return load.load_configuration(raw, root)


def only(raw: Raw, root: Path, **study: Any) -> Configuration:
    """The configuration with one study instead of its own."""
    common = {"models": ["small"], "calibrations": ["recall"]}
    return load.load_configuration(
        {**copy.deepcopy(raw), "studies": {"only": {**common, **study}}}, root
    )


def test_variants_are_the_product_of_a_studys_lists(raw: Raw, root: Path) -> None:
    config = only(
        raw,
        root,
        selectors=["accuracy", "cosine"],
        removed=[1, 2],
        repairs=["none", "ghost"],
        healings=["lora"],
    )
    expected = [
        Variant("small", "recall", selector, removed, repair, "lora")
        for selector in ("accuracy", "cosine")
        for removed in (1, 2)
        for repair in ("ghost", "none")
    ]
    assert requests.list_variants(config) == expected


def test_studies_that_overlap_share_variants(config: Configuration) -> None:
    listed = requests.list_variants(config)
    assert listed == sorted(set(listed))
    assert listed.count(Variant("small", "recall", "accuracy", 2, "none", "none")) == 1


def test_plans_are_those_that_variants_use_and_no_steps_on_the_way(raw: Raw, root: Path) -> None:
    config = only(raw, root, selectors=["accuracy"], removed=[5], repairs=["none", "ghost"])
    assert requests.list_plans(config) == [("small", "recall", "accuracy", 5)]


def test_sizes_are_those_whose_patch_is_used(config: Configuration) -> None:
    assert requests.sizes_of_patches(config, "small", "recall", "accuracy", "ghost") == [1, 2]
    assert requests.sizes_of_patches(config, "other", "recall", "accuracy", "ghost") == []
    assert requests.sizes_of_patches(config, "small", "recall", "accuracy", "affine") == []


def test_own_tasks_are_those_the_calibration_draws_from(config: Configuration) -> None:
    assert config.own_tasks("recall") == ["microworld_recall"]
    assert config.own_tasks("mixture") == ["microworld_facts", "microworld_recall"]
    assert config.own_tasks("corpus") == []
    assert config.own_tasks("mine") == ["mine"]


def test_every_variant_is_measured_on_the_tasks_of_its_studies_and_once(
    config: Configuration,
) -> None:
    jobs = requests.benchmark_blocks(config)
    assert jobs == sorted(set(jobs))
    measured: dict[tuple[str, str, str], list[Variant]] = {}
    for model, calibration, task, block in jobs:
        found = requests.block_variants(config, model, calibration, task, block)
        assert found, "no benchmark job may be empty"
        measured.setdefault((model, calibration, task), []).extend(found)
    both = [v for v in requests.list_variants(config) if v.model == "small" and v.healing == "none"]
    recall = [v for v in both if v.calibration == "recall"]
    corpus = [v for v in both if v.calibration == "corpus"]
    share = [
        Variant("small", "recall", "accuracy", 2, "none", healing) for healing in ("lora", "none")
    ]
    base = {key[2]: found for key, found in measured.items() if key[:2] == ("small", "none")}
    assert sorted(measured[("small", "recall", "microworld_recall")]) == recall
    assert sorted(measured[("small", "recall", "corpus_test")]) == recall
    assert sorted(measured[("small", "corpus", "corpus_test")]) == corpus
    assert sorted(measured[("small", "recall", "microworld_facts")]) == share
    assert ("small", "corpus", "microworld_recall") not in measured
    assert base == dict.fromkeys(
        ("microworld_recall", "corpus_test", "microworld_facts", "mine"), [Variant.base("small")]
    )
    # The unpruned model is measured on everything, whatever its variants are measured on.
    assert {key[2] for key in measured if key[:2] == ("other", "none")} == set(base)


def test_the_unpruned_model_is_in_block_0_alone(config: Configuration) -> None:
    assert requests.block_variants(config, "small", "none", "microworld_facts", 0) == [
        Variant.base("small")
    ]
    assert requests.block_variants(config, "small", "none", "microworld_facts", 1) == []
    assert requests.block_variants(config, "other", "none", "corpus_test", 0) == [
        Variant.base("other")
    ]


def test_adding_a_variant_changes_one_benchmark_job_only(raw: Raw, root: Path) -> None:
    raw["benchmark"]["blocks"] = 5
    before = only(raw, root, selectors=["accuracy"], removed=[1, 2, 3, 4, 5, 6])
    after = only(raw, root, selectors=["accuracy"], removed=[1, 2, 3, 4, 5, 6, 7])

    def contents(config: Configuration) -> dict[Any, list[Variant]]:
        return {
            job: requests.block_variants(config, *job) for job in requests.benchmark_blocks(config)
        }

    old, new = contents(before), contents(after)
    changed = {job for job in new if old.get(job) != new[job]}
    assert set(old) <= set(new)
    assert len({block for *_, block in changed}) == 1
    assert len({block for *_, block in new}) > 1


def test_blocks_are_the_same_in_every_process(config: Configuration, root: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; "
        "from lamina_workflow.checks.load import load_configuration; "
        "from lamina_workflow.study import requests as studies; "
        "config = load_configuration(json.load(sys.stdin), Path(sys.argv[1])); "
        "print(json.dumps(studies.benchmark_blocks(config)))"
    )
    told = {
        "input": json.dumps(config.plain()),
        "env": {"PYTHONHASHSEED": "1"},
        "cwd": SOURCE,
        "text": True,
    }
    printed = subprocess.check_output([sys.executable, "-c", code, str(root)], **told)
    assert printed == json.dumps(requests.benchmark_blocks(config)) + "\n"


def test_a_pass_measures_its_metrics_and_those_it_carries() -> None:
    assert carried_passes("removal") == ["removal", "stream"]
    assert carried_passes("gradient") == ["gradient", "weights"]
    assert carried_passes("stream") == ["stream"]
    assert {metric.pass_ for metric in METRICS.values()} <= {"removal", "stream", *MODULES}


def test_a_pass_carries_the_metrics_of_a_cheaper_one() -> None:
    assert passes_of(["cosine", "angular"]) == ["stream"]
    assert passes_of(["cosine", "accuracy", "perplexity"]) == ["removal"]
    assert passes_of(["cosine", "taylor", "magnitude", "accuracy"]) == ["gradient", "removal"]
    assert passes_of([]) == []


def test_maps_need_one_sweep_per_pass_and_share_it(raw: Raw, root: Path) -> None:
    raw["studies"] = {
        "a": {"models": ["small"], "calibrations": ["recall"], "metrics": ["cosine"]},
        "b": {"models": ["small"], "calibrations": ["recall", "corpus"], "metrics": ["accuracy"]},
        "c": {
            "models": ["small"],
            "calibrations": ["recall"],
            "metrics": ["cosine"],
            "units": "mlp",
        },
    }
    assert sweeps.list_maps(load.load_configuration(raw, root)) == [
        ("small", "corpus", "removal", "layer"),
        ("small", "recall", "removal", "layer"),
        ("small", "recall", "stream", "mlp"),
    ]


@pytest.mark.parametrize("text", ["base/removal/layer", "for/recall/looped", "looped"])
def test_the_selector_of_a_sweep_is_read_as_it_is_written(text: str) -> None:
    assert str(sweeps.SweepSelector.parse(text)) == text


def test_a_sweep_of_another_calibration_goes_on_from_the_plans_of_its_own() -> None:
    found = sweeps.SweepSelector.parse("for/recall/looped")
    assert (found.name, found.planned_on("corpus")) == ("looped", "recall")
    assert sweeps.SweepSelector.parse("looped").planned_on("corpus") == "corpus"


def test_the_pass_of_a_step(config: Configuration) -> None:
    wanted = {"accuracy": "removal", "once": "removal", "cosine": "stream", "heads": "stream"}
    wanted |= dict.fromkeys(("block", "deepest", "random"))
    assert {name: sweeps.step_pass(config, name) for name in config.selectors} == wanted


def test_diagnoses_are_those_that_studies_list(raw: Raw, root: Path) -> None:
    assert requests.list_diagnoses(load.load_configuration(raw, root)) == []
    raw["diagnoses"] = {"spread": {"kind": "variance"}}
    raw["studies"]["maps"]["diagnoses"] = ["spread"]
    raw["studies"]["shares"]["diagnoses"] = ["spread"]
    assert requests.list_diagnoses(load.load_configuration(raw, root)) == [
        *(
            ("other", "recall", "spread"),
            ("small", "corpus", "spread"),
            ("small", "recall", "spread"),
        )
    ]


def test_efficiency_is_given_every_variant_unhealed_and_once(config: Configuration) -> None:
    """How many runs a plan's layers make, and so what a variant costs, is not known before the plan is."""
    listed = requests.efficiency_variants(config, "small")
    assert set(listed) == {
        Variant("small", calibration, selector, removed, repair)
        for calibration in ("recall", "corpus")
        for selector in ("accuracy", "cosine")
        for removed in (1, 2)
        for repair in ("ghost", "none")
    }
    assert len(listed) == len(set(listed))
    assert requests.efficiency_variants(config, "other") == [
        Variant("other", "recall", "accuracy", 4)
    ]


def test_a_sweep_is_split_unless_it_runs_over_weights(raw: Raw, root: Path) -> None:
    raw["sweep"] = {"blocks": 3}
    raw["selectors"]["taylor"] = {"metric": "taylor"}
    config = load.load_configuration(raw, root)
    found = {
        name: sweeps.sweep_blocks(config, "small", name)
        for name in ("accuracy", "cosine", "taylor")
    }
    assert found == {"accuracy": 3, "cosine": 3, "taylor": 1}
    assert sweeps.sweep_blocks(config, "small", "base/weights/layer") == 1


def test_jobs_of_a_sweep_follow_the_depth_of_the_model(raw: Raw, root: Path) -> None:
    depths = {1: 1, 12: 1, 18: 1, 19: 2, 30: 2, 32: 2, 80: 5}
    raw["models"] |= {
        f"of_{depth}": {"source": "org/m", "revision": "main", "layers": depth} for depth in depths
    }
    raw["models"]["of_unknown"] = {"source": "org/m", "revision": "main"}
    config = load.load_configuration(raw, root)
    jobs = {depth: sweeps.sweep_blocks(config, f"of_{depth}", "accuracy") for depth in depths}
    assert jobs == depths
    assert sweeps.sweep_blocks(config, "of_unknown", "accuracy") == 1
    for depth, blocks in jobs.items():
        shares = [
            share_by_cost(all_units(depth, "layer"), depth, block, blocks)
            for block in range(blocks)
        ]
        layers = [depth + sum(depth - 1 - int(unit) for unit in share) for share in shares]
        assert sum(layers) <= 1.1 * depth * (depth + 1) / 2

"""What studies ask for: variants, plans, patches, sweeps and jobs, spelled out."""

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
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study import requests, sweeps
from tests import ROOT
from tests.given.configurations import RawConfig, write_model_and_data

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
def raw() -> RawConfig:
    studies: RawConfig = yaml.safe_load(STUDIES)
    return studies


@pytest.fixture
def configuration(raw: RawConfig, root: Path) -> Configuration:
    return load_configuration(raw, root)


def configure_study(raw: RawConfig, root: Path, **study: Any) -> Configuration:
    """The configuration with one study of `small` on `recall` instead of its own studies."""
    changed = copy.deepcopy(raw)
    changed["studies"] = {"only": {"models": ["small"], "calibrations": ["recall"], **study}}
    return load_configuration(changed, root)


def test_variants_are_the_product_of_a_studys_lists(raw: RawConfig, root: Path) -> None:
    configuration = configure_study(
        raw,
        root,
        selectors=["accuracy", "cosine"],
        removed=[1, 2],
        repairs=["none", "ghost"],
        healings=["lora"],
    )

    assert requests.list_variants(configuration) == [
        Variant("small", "recall", "accuracy", 1, "ghost", "lora"),
        Variant("small", "recall", "accuracy", 1, "none", "lora"),
        Variant("small", "recall", "accuracy", 2, "ghost", "lora"),
        Variant("small", "recall", "accuracy", 2, "none", "lora"),
        Variant("small", "recall", "cosine", 1, "ghost", "lora"),
        Variant("small", "recall", "cosine", 1, "none", "lora"),
        Variant("small", "recall", "cosine", 2, "ghost", "lora"),
        Variant("small", "recall", "cosine", 2, "none", "lora"),
    ]


def test_studies_that_overlap_share_variants(configuration: Configuration) -> None:
    variants = requests.list_variants(configuration)

    assert len(variants) == len(set(variants))
    assert Variant("small", "recall", "accuracy", 2) in variants  # of `prune` and of `shares`


def test_only_plans_of_variants_are_asked_for_and_no_steps_before_them(
    raw: RawConfig, root: Path
) -> None:
    configuration = configure_study(
        raw, root, selectors=["accuracy"], removed=[5], repairs=["none", "ghost"]
    )

    assert requests.list_plans(configuration) == [("small", "recall", "accuracy", 5)]


@pytest.mark.parametrize(
    ("model", "repair", "sizes"),
    [("small", "ghost", [1, 2]), ("other", "ghost", []), ("small", "affine", [])],
)
def test_patches_are_fitted_for_the_sizes_of_variants_that_use_them(
    configuration: Configuration, model: str, repair: str, sizes: list[int]
) -> None:
    patch_sizes = requests.sizes_of_patches(configuration, model, "recall", "accuracy", repair)

    assert patch_sizes == sizes


@pytest.mark.parametrize(
    ("calibration", "tasks"),
    [
        ("recall", ["microworld_recall"]),
        ("mixture", ["microworld_facts", "microworld_recall"]),  # `hops` is no benchmark
        ("corpus", []),
        ("mine", ["mine"]),
    ],
)
def test_own_tasks_are_those_the_calibration_draws_from(
    configuration: Configuration, calibration: str, tasks: list[str]
) -> None:
    assert configuration.own_tasks(calibration) == tasks


@pytest.fixture
def variants_by_task(configuration: Configuration) -> dict[tuple[str, str, str], list[Variant]]:
    """The variants that all benchmark jobs measure, by model, calibration and task."""
    variants: dict[tuple[str, str, str], list[Variant]] = {}
    for model, calibration, task, block in requests.benchmark_blocks(configuration):
        of_block = requests.block_variants(configuration, model, calibration, task, block)
        variants.setdefault((model, calibration, task), []).extend(of_block)
    return variants


def test_every_benchmark_job_is_listed_once_and_measures_something(
    configuration: Configuration,
) -> None:
    jobs = requests.benchmark_blocks(configuration)

    assert len(jobs) == len(set(jobs))
    for job in jobs:
        assert requests.block_variants(configuration, *job)


def test_variants_are_measured_once_on_the_tasks_of_their_studies(
    configuration: Configuration,
    variants_by_task: dict[tuple[str, str, str], list[Variant]],
) -> None:
    unhealed = [
        variant
        for variant in requests.list_variants(configuration)
        if variant.model == "small" and variant.healing == "none"
    ]
    on_recall = [variant for variant in unhealed if variant.calibration == "recall"]
    on_corpus = [variant for variant in unhealed if variant.calibration == "corpus"]
    of_shares = [
        Variant("small", "recall", "accuracy", 2, "none", "lora"),
        Variant("small", "recall", "accuracy", 2, "none", "none"),
    ]

    assert sorted(variants_by_task["small", "recall", "microworld_recall"]) == on_recall
    assert sorted(variants_by_task["small", "recall", "corpus_test"]) == on_recall
    assert sorted(variants_by_task["small", "corpus", "corpus_test"]) == on_corpus
    assert sorted(variants_by_task["small", "recall", "microworld_facts"]) == of_shares
    assert ("small", "corpus", "microworld_recall") not in variants_by_task


@pytest.mark.parametrize("model", ["small", "other"])
def test_the_base_model_is_measured_on_every_benchmark(
    variants_by_task: dict[tuple[str, str, str], list[Variant]], model: str
) -> None:
    tasks = {
        task: variants
        for (key_model, calibration, task), variants in variants_by_task.items()
        if (key_model, calibration) == (model, "none")
    }

    assert tasks == {
        "microworld_recall": [Variant.base(model)],
        "corpus_test": [Variant.base(model)],
        "microworld_facts": [Variant.base(model)],
        "mine": [Variant.base(model)],
    }


@pytest.mark.parametrize(
    ("model", "task", "block", "variants"),
    [
        ("small", "microworld_facts", 0, [Variant.base("small")]),
        ("small", "microworld_facts", 1, []),
        ("other", "corpus_test", 0, [Variant.base("other")]),
    ],
)
def test_the_base_model_is_in_block_0_alone(
    configuration: Configuration, model: str, task: str, block: int, variants: list[Variant]
) -> None:
    assert requests.block_variants(configuration, model, "none", task, block) == variants


def list_blocks(configuration: Configuration) -> dict[Any, list[Variant]]:
    """The variants of each benchmark job."""
    return {
        job: requests.block_variants(configuration, *job)
        for job in requests.benchmark_blocks(configuration)
    }


def test_adding_a_variant_changes_one_block_only(raw: RawConfig, root: Path) -> None:
    raw["benchmark"]["blocks"] = 5
    six_sizes = configure_study(raw, root, selectors=["accuracy"], removed=[1, 2, 3, 4, 5, 6])
    seven_sizes = configure_study(raw, root, selectors=["accuracy"], removed=[1, 2, 3, 4, 5, 6, 7])

    blocks_before = list_blocks(six_sizes)
    blocks_after = list_blocks(seven_sizes)

    changed = {job for job in blocks_after if blocks_before.get(job) != blocks_after[job]}
    assert blocks_before.keys() <= blocks_after.keys()
    assert len({block for *_, block in changed}) == 1
    assert len({block for *_, block in blocks_after}) > 1


PRINT_BLOCKS = """
import json, sys
from pathlib import Path
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.study import requests

configuration = load_configuration(json.load(sys.stdin), Path(sys.argv[1]))
print(json.dumps(requests.benchmark_blocks(configuration)))
"""


def test_blocks_are_the_same_in_every_process(configuration: Configuration, root: Path) -> None:
    printed = subprocess.check_output(
        [sys.executable, "-c", PRINT_BLOCKS, str(root)],
        input=json.dumps(configuration.plain()),
        env={"PYTHONHASHSEED": "1"},
        cwd=ROOT / "src",
        text=True,
    )

    blocks = [tuple(block) for block in json.loads(printed)]
    assert blocks == requests.benchmark_blocks(configuration)


@pytest.mark.parametrize(
    ("pass_name", "carried"),
    [
        ("removal", ["removal", "stream"]),
        ("gradient", ["gradient", "weights"]),
        ("stream", ["stream"]),
    ],
)
def test_a_pass_measures_its_metrics_and_those_of_cheaper_passes(
    pass_name: str, carried: list[str]
) -> None:
    assert carried_passes(pass_name) == carried


def test_every_metric_has_a_pass_that_is_run() -> None:
    assert {metric.pass_ for metric in METRICS.values()} <= {"removal", "stream", *MODULES}


@pytest.mark.parametrize(
    ("metrics", "passes"),
    [
        (["cosine", "angular"], ["stream"]),
        (["cosine", "accuracy", "perplexity"], ["removal"]),
        (["cosine", "taylor", "magnitude", "accuracy"], ["gradient", "removal"]),
        ([], []),
    ],
)
def test_metrics_need_the_fewest_passes(metrics: list[str], passes: list[str]) -> None:
    assert passes_of(metrics) == passes


def test_maps_need_one_sweep_per_pass_and_share_it(raw: RawConfig, root: Path) -> None:
    small_recall = {"models": ["small"], "calibrations": ["recall"]}
    raw["studies"] = {
        "cheap": small_recall | {"metrics": ["cosine"]},
        "honest": {
            "models": ["small"],
            "calibrations": ["recall", "corpus"],
            "metrics": ["accuracy"],
        },
        "mlps": small_recall | {"metrics": ["cosine"], "units": "mlp"},
    }

    maps = sweeps.list_maps(load_configuration(raw, root))

    assert maps == [
        ("small", "corpus", "removal", "layer"),
        ("small", "recall", "removal", "layer"),
        ("small", "recall", "stream", "mlp"),
    ]


@pytest.mark.parametrize("name", ["base/removal/layer", "for/recall/looped", "looped"])
def test_the_selector_of_a_sweep_is_read_as_it_is_written(name: str) -> None:
    assert str(sweeps.SweepSelector.parse(name)) == name


@pytest.mark.parametrize(
    ("name", "plan_calibration"), [("for/recall/looped", "recall"), ("looped", "corpus")]
)
def test_a_sweep_on_another_calibration_starts_from_the_plans_of_its_selector(
    name: str, plan_calibration: str
) -> None:
    selector = sweeps.SweepSelector.parse(name)

    assert selector.name == "looped"
    assert selector.planned_on("corpus") == plan_calibration


@pytest.mark.parametrize(
    ("selector", "pass_name"),
    [
        ("accuracy", "removal"),
        ("once", "removal"),
        ("cosine", "stream"),
        ("heads", "stream"),
        ("block", None),
        ("deepest", None),
        ("random", None),
    ],
)
def test_the_pass_of_a_step_is_that_of_the_selectors_metric(
    configuration: Configuration, selector: str, pass_name: str | None
) -> None:
    assert sweeps.step_pass(configuration, selector) == pass_name


def test_studies_without_diagnoses_ask_for_none(configuration: Configuration) -> None:
    assert requests.list_diagnoses(configuration) == []


def test_diagnoses_are_those_that_studies_list(raw: RawConfig, root: Path) -> None:
    raw["diagnoses"] = {"spread": {"kind": "variance"}}
    raw["studies"]["maps"]["diagnoses"] = ["spread"]
    raw["studies"]["shares"]["diagnoses"] = ["spread"]

    diagnoses = requests.list_diagnoses(load_configuration(raw, root))

    assert diagnoses == [
        ("other", "recall", "spread"),
        ("small", "corpus", "spread"),
        ("small", "recall", "spread"),
    ]


def test_every_variant_is_timed_unhealed_and_once(configuration: Configuration) -> None:
    """A healing costs nothing more; which plans cost the same is not known before they are made."""
    timed = requests.efficiency_variants(configuration, "small")

    unhealed = {
        variant
        for variant in requests.list_variants(configuration)
        if variant.model == "small" and variant.healing == "none"
    }
    assert set(timed) == unhealed
    assert len(timed) == len(unhealed) == 16


def test_variants_that_are_only_healed_are_timed_without_the_healing(
    raw: RawConfig, root: Path
) -> None:
    configuration = configure_study(
        raw, root, models=["other"], selectors=["accuracy"], removed=[4], healings=["lora"]
    )

    assert requests.efficiency_variants(configuration, "other") == [
        Variant("other", "recall", "accuracy", 4)
    ]


@pytest.mark.parametrize(
    ("selector", "n_blocks"),
    [("accuracy", 3), ("cosine", 1), ("taylor", 1), ("base/weights/layer", 1)],
)
def test_a_sweep_is_split_only_if_it_removes_units(
    raw: RawConfig, root: Path, selector: str, n_blocks: int
) -> None:
    raw["sweep"] = {"blocks": 3}
    raw["selectors"]["taylor"] = {"metric": "taylor"}

    configuration = load_configuration(raw, root)

    assert sweeps.sweep_blocks(configuration, "small", selector) == n_blocks


@pytest.mark.parametrize(
    ("n_layers", "n_blocks"), [(1, 1), (12, 1), (18, 1), (19, 2), (30, 2), (32, 2), (80, 5)]
)
def test_jobs_of_a_sweep_follow_the_depth_of_the_model(
    raw: RawConfig, root: Path, n_layers: int, n_blocks: int
) -> None:
    raw["models"]["deep"] = {"source": "org/m", "revision": "main", "layers": n_layers}

    configuration = load_configuration(raw, root)

    assert sweeps.sweep_blocks(configuration, "deep", "accuracy") == n_blocks


def test_a_model_of_unknown_depth_is_swept_in_one_job(raw: RawConfig, root: Path) -> None:
    raw["models"]["deep"] = {"source": "org/m", "revision": "main"}

    configuration = load_configuration(raw, root)

    assert sweeps.sweep_blocks(configuration, "deep", "accuracy") == 1


@pytest.mark.parametrize(("n_layers", "n_blocks"), [(12, 1), (19, 2), (32, 2), (80, 5)])
def test_the_jobs_of_a_sweep_run_few_more_layers_than_one_job(n_layers: int, n_blocks: int) -> None:
    """Each job runs the whole model once, and from each removed layer on again."""
    layers_of_one_job = n_layers * (n_layers + 1) / 2
    layers_of_all_jobs = 0
    for block in range(n_blocks):
        units = share_by_cost(all_units(n_layers, "layer"), n_layers, block, n_blocks)
        layers_of_all_jobs += n_layers + sum(n_layers - 1 - int(unit) for unit in units)

    assert layers_of_all_jobs <= 1.1 * layers_of_one_job

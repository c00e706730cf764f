"""Which files a job reads: from a dry run of Snakemake on a study with one of everything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data

# By file that a job writes: the files below `results/` that it reads.
Graph = dict[str, set[str]]

SELECTORS: RawConfig = {
    "once": {"metric": "accuracy", "strategy": "one_shot"},
    "looped": {"metric": "accuracy", "repair": "general"},
    "looped_once": {"metric": "accuracy", "strategy": "one_shot", "repair": "ghost"},
    "pairs": {"metric": "accuracy", "strategy": "pairwise"},
    "portfolio": {"strategy": "portfolio", "units": "both", "cost": 0.4, "repairs": ["general"]},
    "drawn": {"strategy": "random", "units": "both"},
    "wide": {"metric": "accuracy", "also": {"corpus": 0.5}},
    "wide_looped": {"metric": "accuracy", "also": {"corpus": 0.5}, "repair": "general"},
    "wide_once": {
        "metric": "accuracy",
        "strategy": "one_shot",
        "also": {"corpus": 1},
        "repair": "ghost",
    },
}
REPAIRS: RawConfig = {
    "general": {"method": "ghost", "bias": True, "data": {"corpus": 0.1, "own": 1}}
}
HEALINGS: RawConfig = {
    "other": {"method": "lora", "data": "corpus"},
    "both": {"method": "lora", "data": {"own": 1, "corpus": 0.1}},
    "alone": {"method": "lora", "data": {"own": 2}},
}
# By selector: the sizes of which plans are asked for.
PLANNED_SIZES = {
    "accuracy": (1, 3),
    "once": (1, 3),
    "wide": (1, 3),
    "wide_looped": (1, 3),
    "wide_once": (1, 3),
    "looped": (1,),
    "looped_once": (1,),
    "angular": (2,),
    "random": (2,),
    "pairs": (1,),
    "portfolio": (1,),
    "drawn": (2,),
}
MANIFEST = "results/models/small/manifest.json"
MODEL_CHECK = "results/models/small/check.json"
GHOST_PATCH = "results/patches/small/recall/accuracy/ghost.safetensors"
GENERAL_PATCH = "results/patches/small/recall/accuracy/general.safetensors"
EXPORTS = "results/exports/small/recall/accuracy/removed=1"


def calibration_file(calibration: str) -> str:
    return f"results/calibrations/small/{calibration}.parquet"


def plan_file(selector: str, removed: int, calibration: str = "recall") -> str:
    return f"results/plans/small/{calibration}/{selector}/removed={removed}.json"


def sweep_file(selector: str, removed: int, calibration: str = "recall") -> str:
    return f"results/sweeps/small/{calibration}/{selector}/removed={removed}.parquet"


def adapter_file(repair: str, healing: str, name: str = "training.parquet") -> str:
    return f"results/adapters/small/recall/accuracy/removed=1/{repair}/{healing}/{name}"


def benchmark_file(calibration: str) -> str:
    return f"results/benchmarks/small/{calibration}/microworld_recall/block=0.parquet"


def configure_everything() -> RawConfig:
    raw = minimal_config()
    raw["selectors"] |= SELECTORS
    raw["repairs"] |= REPAIRS
    raw["healings"] |= HEALINGS
    set_key(raw, "benchmarks.efficiency", {})
    set_key(raw, "calibrations.solved", {"task": "microworld_sorting", "answers": "model"})
    set_key(raw, "calibrations.blend", {"mixture": {"solved": 1, "corpus": 1}})
    smallest = {"models": ["small"], "calibrations": ["recall"], "removed": [1]}
    raw["studies"]["prune"] = {
        **smallest,
        "selectors": ["accuracy"],
        "repairs": ["none", "ghost", "general"],
        "healings": ["none", *HEALINGS],
    }
    raw["studies"]["search"] = {**smallest, "selectors": ["pairs", "portfolio"]}
    return raw


def list_targets() -> list[str]:
    """Plans, calibrations and exports that no study asks for."""
    targets = [
        calibration_file("solved"),
        calibration_file("blend"),
        f"{EXPORTS}/ghost/both",
        f"{EXPORTS}/none/none",
        plan_file("wide", 3, "corpus"),
    ]
    for selector, sizes in PLANNED_SIZES.items():
        targets += [plan_file(selector, removed) for removed in sizes]
    return targets


def read_files(job: str, section: str) -> list[str]:
    """The files of a section, `input` or `output`, of a job in the text of a dry run."""
    line = re.search(rf"^    {section}: (.*)$", job, re.MULTILINE)
    return line[1].split(", ") if line else []


def read_graph(dry_run: str) -> Graph:
    graph: Graph = {}
    for job in re.split(r"\n(?:local)?rule \w+:\n", dry_run):
        inputs = {file for file in read_files(job, "input") if file.startswith("results/")}
        for output in read_files(job, "output"):
            graph[output] = inputs
    return graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    root: Path = write_model_and_data(tmp_path_factory.mktemp("graph"))
    (root / "graph.yaml").write_text(yaml.safe_dump(configure_everything()))
    (root / "resources").symlink_to(ROOT / "resources")
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "2"]
    command += ["--snakefile", str(ROOT / "workflow/Snakefile"), "--configfile", "graph.yaml"]
    command += ["--", "all", *list_targets()]
    # One of its models is of the hub, and no cache has it.
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "0"}
    process = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return read_graph(process.stdout + process.stderr)


def list_evidence(graph: Graph, selector: str, removed: int) -> set[str]:
    """What a plan is made from, together with the model and its calibration."""
    inputs = graph[plan_file(selector, removed)]
    assert inputs >= {MANIFEST, calibration_file("recall")}
    return inputs - {MANIFEST, calibration_file("recall")}


@pytest.mark.parametrize(("selector", "removed"), [("accuracy", 1), ("once", 3)])
def test_a_plan_from_the_base_model_reads_the_sweep_of_all_selectors(
    graph: Graph, selector: str, removed: int
) -> None:
    assert list_evidence(graph, selector, removed) == {sweep_file("base/removal/layer", 0)}


def test_a_later_step_reads_its_own_sweep_and_the_plan_before(graph: Graph) -> None:
    assert list_evidence(graph, "accuracy", 3) == {
        sweep_file("accuracy", 2),
        plan_file("accuracy", 2),
    }


@pytest.mark.parametrize("selector", ["looped", "looped_once"])
def test_a_selector_with_a_repair_in_its_loop_has_a_sweep_of_its_own(
    graph: Graph, selector: str
) -> None:
    assert list_evidence(graph, selector, 1) == {sweep_file(selector, 0)}


def test_a_block_is_chosen_from_activations(graph: Graph) -> None:
    assert list_evidence(graph, "angular", 2) == {"results/activations/small/recall.parquet"}


@pytest.mark.parametrize("selector", ["random", "drawn"])
def test_a_random_plan_reads_no_measurement(graph: Graph, selector: str) -> None:
    assert list_evidence(graph, selector, 2) == set()


def test_only_calibrations_that_ask_for_them_read_the_models_own_answers(graph: Graph) -> None:
    answers = "results/answers/small/solved.parquet"
    questions = "results/questions/small/solved.parquet"

    readers = {file for file, inputs in graph.items() if answers in inputs}

    assert graph[questions] == {MANIFEST}
    assert graph[answers] == {MANIFEST, MODEL_CHECK, questions}
    assert readers == {calibration_file("solved"), calibration_file("blend")}
    written = {file for file in graph if re.search("/(answers|questions)/", file)}
    assert written == {answers, questions}


@pytest.mark.parametrize("selector", ["pairs", "portfolio"])
def test_a_search_makes_the_plans_of_all_sizes(graph: Graph, selector: str) -> None:
    assert graph[plan_file(selector, 1)] == {f"results/searches/small/recall/{selector}.json"}


def test_a_search_reads_its_calibration_and_the_data_of_its_repair(graph: Graph) -> None:
    search = "results/searches/small/recall/portfolio.parquet"

    assert graph[search] >= {MANIFEST, calibration_file("recall"), calibration_file("corpus")}
    assert search in graph["results/tables/searches.parquet"]


@pytest.mark.parametrize("selector", ["pairs", "portfolio"])
def test_a_search_needs_no_sweep(graph: Graph, selector: str) -> None:
    assert not [file for file in graph if f"sweeps/small/recall/{selector}" in file]


def test_a_sweep_is_gathered_from_its_blocks(graph: Graph) -> None:
    blocks = graph[sweep_file("accuracy", 2)]

    folder = "results/sweeps/small/recall/accuracy/removed=2"
    assert blocks
    assert blocks == {f"{folder}/block={block}.parquet" for block in range(len(blocks))}


def test_a_sweep_reads_the_plan_that_it_starts_from(graph: Graph) -> None:
    of_base_model = {MANIFEST, MODEL_CHECK, calibration_file("recall")}

    for block in graph[sweep_file("accuracy", 2)]:
        assert graph[block] == of_base_model | {plan_file("accuracy", 2)}
    for block in graph[sweep_file("base/removal/layer", 0)]:
        assert graph[block] == of_base_model


@pytest.mark.parametrize(
    ("selector", "own_sweep", "corpus_sweep"),
    [
        # Sweeps of the base model are shared, unless a repair is in the loop.
        ("wide", "base/removal/layer", "base/removal/layer"),
        ("wide_looped", "wide_looped", "for/recall/wide_looped"),
        ("wide_once", "wide_once", "for/recall/wide_once"),
    ],
)
def test_a_first_step_reads_the_sweeps_of_all_its_calibrations(
    graph: Graph, selector: str, own_sweep: str, corpus_sweep: str
) -> None:
    assert list_evidence(graph, selector, 1) == {
        sweep_file(own_sweep, 0),
        sweep_file(corpus_sweep, 0, "corpus"),
        calibration_file("corpus"),
    }


@pytest.mark.parametrize("selector", ["wide", "wide_looped"])
def test_sweeps_of_another_calibration_follow_the_plans_of_the_selector(
    graph: Graph, selector: str
) -> None:
    corpus_sweep = sweep_file(f"for/recall/{selector}", 2, "corpus")
    plan_before = plan_file(selector, 2)

    evidence = list_evidence(graph, selector, 3)

    assert evidence >= {sweep_file(selector, 2), plan_before, corpus_sweep}
    for block in graph[corpus_sweep]:
        assert plan_before in graph[block]


def test_one_shot_plans_of_all_sizes_read_the_sweeps_of_the_base_model(graph: Graph) -> None:
    corpus_sweep = sweep_file("for/recall/wide_once", 0, "corpus")

    assert corpus_sweep in list_evidence(graph, "wide_once", 3)


def test_an_extra_calibration_that_is_the_own_one_is_swept_once(graph: Graph) -> None:
    assert graph[plan_file("wide", 3, "corpus")] == {
        MANIFEST,
        calibration_file("corpus"),
        sweep_file("wide", 2, "corpus"),
        plan_file("wide", 2, "corpus"),
    }


@pytest.mark.parametrize(
    ("selector", "removed", "swept_on", "calibrations"),
    [
        ("looped", 0, "recall", ["recall", "corpus"]),
        ("wide_looped", 2, "recall", ["recall", "corpus"]),
        ("for/recall/wide_looped", 2, "corpus", ["recall", "corpus"]),
        ("accuracy", 2, "recall", ["recall"]),
        ("looped_once", 0, "recall", ["recall"]),
        ("for/recall/wide", 2, "corpus", ["corpus"]),
    ],
)
def test_a_sweep_reads_what_the_repair_in_its_loop_is_fitted_on(
    graph: Graph, selector: str, removed: int, swept_on: str, calibrations: list[str]
) -> None:
    calibrations_read: set[str] = set()
    for block in graph[sweep_file(selector, removed, swept_on)]:
        calibrations_read |= {file for file in graph[block] if "/calibrations/" in file}

    assert calibrations_read == {calibration_file(name) for name in calibrations}


def test_a_patch_reads_its_plan_and_the_calibrations_that_it_is_fitted_on(graph: Graph) -> None:
    assert plan_file("accuracy", 1) in graph[GHOST_PATCH]
    assert calibration_file("corpus") not in graph[GHOST_PATCH]
    assert calibration_file("corpus") in graph[GENERAL_PATCH]


def test_tables_list_the_calibrations_of_repairs_and_activations_of_plans(graph: Graph) -> None:
    activations = "results/activations/small/recall.parquet"

    assert calibration_file("corpus") in graph["results/tables/calibrations.parquet"]
    assert graph["results/tables/activations.parquet"] == {activations}


@pytest.mark.parametrize(
    ("healing", "calibrations"),
    [
        ("alone", {"recall"}),
        ("other", {"recall", "corpus"}),
        ("both", {"recall", "corpus"}),
    ],
)
def test_a_healing_reads_the_variant_and_what_it_trains_on(
    graph: Graph, healing: str, calibrations: set[str]
) -> None:
    inputs = graph[adapter_file("ghost", healing)]

    calibrations_read = {file for file in inputs if "/calibrations/" in file}
    assert calibrations_read == {calibration_file(name) for name in calibrations}
    assert inputs >= {plan_file("accuracy", 1), GHOST_PATCH}


@pytest.mark.parametrize("healing", HEALINGS)
def test_a_healing_without_repair_reads_no_patch(graph: Graph, healing: str) -> None:
    assert not [file for file in graph[adapter_file("none", healing)] if "/patches/" in file]


@pytest.fixture(scope="module")
def adapters() -> set[str]:
    files: set[str] = set()
    for repair in ("none", "ghost", "general"):
        files |= {adapter_file(repair, healing) for healing in HEALINGS}
    return files


def test_a_benchmark_reads_plans_patches_and_adapters(graph: Graph, adapters: set[str]) -> None:
    variant_files = adapters | {GHOST_PATCH, GENERAL_PATCH, plan_file("accuracy", 1)}

    assert graph[benchmark_file("recall")] >= variant_files


def test_timings_read_no_adapter(graph: Graph, adapters: set[str]) -> None:
    """Adapters are merged into the weights and cost nothing."""
    inputs = graph["results/efficiency/small.parquet"]

    plans = {plan_file("accuracy", 1), plan_file("pairs", 1)}
    assert inputs >= plans | {GHOST_PATCH, GENERAL_PATCH}
    assert not inputs & adapters


def list_gates(graph: Graph, calibration: str) -> set[str]:
    """The checks of overlap, and documents of tasks, that a benchmark waits for."""
    inputs = graph[benchmark_file(calibration)]
    return {file for file in inputs if re.search("/(overlap|tasks)/", file)}


def test_a_benchmark_waits_for_the_overlap_of_all_calibrations_of_its_variants(
    graph: Graph,
) -> None:
    overlaps = {
        "results/overlap/small/corpus/microworld_recall.json",
        "results/overlap/small/recall/microworld_recall.json",
    }

    assert list_gates(graph, "recall") == overlaps
    assert list_gates(graph, "none") == {"results/tasks/microworld_recall.parquet"}
    assert graph["results/tables/shared_documents.parquet"] >= overlaps


def test_every_job_that_loads_a_model_waits_for_its_check(graph: Graph) -> None:
    loading = [
        file
        for file in graph
        if re.match("results/(activations|patches|benchmarks|efficiency)/", file)
        or re.search("/adapters/|/block=|/searches/", file)
    ]

    assert len(loading) > 20
    for file in loading:
        assert MODEL_CHECK in graph[file], file


def test_an_export_reads_the_files_of_its_variant_and_starts_no_benchmark(graph: Graph) -> None:
    assert graph[f"{EXPORTS}/none/none"] == {MANIFEST, plan_file("accuracy", 1)}
    assert graph[f"{EXPORTS}/ghost/both"] == {
        MANIFEST,
        plan_file("accuracy", 1),
        GHOST_PATCH,
        adapter_file("ghost", "both", "adapter_model.safetensors"),
        adapter_file("ghost", "both", "adapter_config.json"),
    }

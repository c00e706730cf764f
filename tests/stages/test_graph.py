"""What jobs read, by the graph that Snakemake builds of the rules: a dry run of a study with one of everything."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from tests import ROOT
from tests.given.configurations import minimal_config, set_key, write_model_and_data

Graph = dict[str, set[str]]  # what is read for each file

SELECTORS = {
    "once": {"metric": "accuracy", "strategy": "one_shot"},
    "looped": {"metric": "accuracy", "repair": "general"},
    "looped_once": {"metric": "accuracy", "strategy": "one_shot", "repair": "ghost"},
    "evolved": {"metric": "accuracy", "strategy": "evolutionary", "repair": "general"},
    "halved": {"strategy": "portfolio", "units": "both", "cost": 0.4},
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
HEALINGS = {
    "other": {"method": "lora", "data": "corpus"},
    "both": {"method": "lora", "data": {"own": 1, "corpus": 0.1}},
    "alone": {"method": "lora", "data": {"own": 2}},
}
STEPS = dict.fromkeys(("accuracy", "once", "wide", "wide_looped", "wide_once"), (1, 3))
STEPS |= {
    "looped": (1,),
    "looped_once": (1,),
    "angular": (2,),
    "random": (2,),
    "evolved": (1,),
}
STEPS |= {"halved": (1,), "drawn": (2,)}
CALIBRATION, MODEL = "results/calibrations/small/{}.parquet", "results/models/small/manifest.json"
ADAPTER = "results/adapters/small/recall/accuracy/removed=1/{}/{}/"


def plan(selector: str, removed: int, calibration: str = "recall") -> str:
    return f"results/plans/small/{calibration}/{selector}/removed={removed}.json"


def sweep(selector: str, removed: int, calibration: str = "recall") -> str:
    return f"results/sweeps/small/{calibration}/{selector}/removed={removed}.parquet"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    root, raw = write_model_and_data(tmp_path_factory.mktemp("graph")), minimal_config()
    raw["selectors"] |= SELECTORS
    raw["healings"] |= HEALINGS
    raw["repairs"]["general"] = {"method": "ghost", "bias": True, "data": {"corpus": 0.1, "own": 1}}
    set_key(raw, "benchmarks.efficiency", {})
    set_key(raw, "calibrations.solved", {"task": "microworld_sorting", "answers": "model"})
    set_key(raw, "calibrations.blend", {"mixture": {"solved": 1, "corpus": 1}})
    study = {
        "models": ["small"],
        "calibrations": ["recall"],
        "removed": [1],
        "selectors": ["accuracy"],
    }
    raw["studies"]["prune"] = study | {
        "repairs": ["none", "ghost", "general"],
        "healings": ["none", *HEALINGS],
    }
    raw["studies"]["search"] = study | {"selectors": ["evolved", "halved"]}
    (root / "graph.yaml").write_text(yaml.safe_dump(raw))
    (root / "resources").symlink_to(ROOT / "resources")
    asked = [plan(name, size) for name, sizes in STEPS.items() for size in sizes] + [
        plan("wide", 3, "corpus")
    ]
    asked += [CALIBRATION.format(name) for name in ("solved", "blend")]
    exported = [
        f"results/exports/small/recall/accuracy/removed=1/{way}"
        for way in ("ghost/both", "none/none")
    ]
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-n",
        "--cores",
        "2",
        "--snakefile",
        str(ROOT / "Snakefile"),
    ]
    command += ["--configfile", "graph.yaml", "--", "all", *asked, *exported]
    # One of its models is of the hub, and no cache has it.
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return parsed(done.stdout + done.stderr)


def parsed(output: str) -> Graph:
    """The inputs of every output that a dry run lists, without the user's own files."""
    graph: Graph = {}
    for job in re.split(r"\n(?:local)?rule \w+:\n", output):
        read, written = (
            re.search(rf"^    {name}: (.*)$", job, re.MULTILINE) for name in ("input", "output")
        )
        inputs = {
            file for file in (read[1].split(", ") if read else []) if file.startswith("results/")
        }
        graph |= dict.fromkeys(written[1].split(", ") if written else [], inputs)
    return graph


def evidence(graph: Graph, selector: str, removed: int) -> set[str]:
    read = graph[plan(selector, removed)]
    assert read >= {MODEL, CALIBRATION.format("recall")}
    return read - {MODEL, CALIBRATION.format("recall")}


def test_the_evidence_of_a_step(graph: Graph) -> None:
    base = sweep("base/removal/layer", 0)
    assert evidence(graph, "accuracy", 1) == evidence(graph, "once", 3) == {base}
    assert evidence(graph, "accuracy", 3) == {sweep("accuracy", 2), plan("accuracy", 2)}
    for own in ("looped", "looped_once"):
        assert evidence(graph, own, 1) == {sweep(own, 0)}
    assert evidence(graph, "angular", 2) == {"results/activations/small/recall.parquet"}
    assert evidence(graph, "random", 2) == evidence(graph, "drawn", 2) == set()


def test_only_calibrations_that_ask_for_them_read_the_models_own_answers(graph: Graph) -> None:
    answers, questions = (
        f"results/{folder}/small/solved.parquet" for folder in ("answers", "questions")
    )
    assert graph[answers] == {MODEL, "results/models/small/check.json", questions} and graph[
        questions
    ] == {MODEL}
    read = {file for file, inputs in graph.items() if answers in inputs}
    assert read == {CALIBRATION.format("solved"), CALIBRATION.format("blend")}
    assert {file for file in graph if re.search("/(answers|questions)/", file)} == {
        answers,
        questions,
    }


def test_a_search_finds_the_plans_of_all_sizes(graph: Graph) -> None:
    found = "results/searches/small/recall/evolved"
    assert graph[plan("evolved", 1)] == {f"{found}.json"}
    assert graph[plan("halved", 1)] == {found.replace("evolved", "halved.json")}
    assert graph[f"{found}.parquet"] >= {
        MODEL,
        CALIBRATION.format("recall"),
        CALIBRATION.format("corpus"),
    }
    assert f"{found}.parquet" in graph["results/tables/searches.parquet"]
    assert not [file for file in graph if "sweeps/small/recall/evolved" in file]


def test_a_sweep_reads_the_plan_that_it_goes_on_from_and_is_gathered_from_its_blocks(
    graph: Graph,
) -> None:
    blocks = graph[sweep("accuracy", 2)]
    assert blocks == {
        f"results/sweeps/small/recall/accuracy/removed=2/block={b}.parquet"
        for b in range(len(blocks))
    }
    own = {MODEL, "results/models/small/check.json", CALIBRATION.format("recall")}
    assert all(graph[block] == own | {plan("accuracy", 2)} for block in blocks)
    assert all(graph[block] == own for block in graph[sweep("base/removal/layer", 0)])


def test_a_step_reads_the_sweeps_of_the_others_which_follow_its_own_plans(graph: Graph) -> None:
    """Of the unpruned model it is everybody's, unless a repair is in the loop."""
    first = {
        "wide": "base/removal/layer",
        "wide_looped": "for/recall/wide_looped",
        "wide_once": "for/recall/wide_once",
    }
    for name, swept in first.items():
        own = swept if name == "wide" else name
        assert evidence(graph, name, 1) == {
            sweep(own, 0),
            sweep(swept, 0, "corpus"),
            CALIBRATION.format("corpus"),
        }
    for name in ("wide", "wide_looped"):
        beside = sweep(f"for/recall/{name}", 2, "corpus")
        assert evidence(graph, name, 3) >= {sweep(name, 2), plan(name, 2), beside}
        assert all(plan(name, 2) in graph[block] for block in graph[beside])
    assert sweep("for/recall/wide_once", 0, "corpus") in evidence(graph, "wide_once", 3)
    # For plans made on the corpus itself nothing is beside.
    alone = {
        plan("wide", 2, "corpus"),
        sweep("wide", 2, "corpus"),
        MODEL,
        CALIBRATION.format("corpus"),
    }
    assert graph[plan("wide", 3, "corpus")] == alone


def test_what_a_repair_in_the_loop_is_fitted_on_is_read_by_the_sweeps(graph: Graph) -> None:
    def calibrations(selector: str, removed: int, calibration: str = "recall") -> set[str]:
        blocks = graph[sweep(selector, removed, calibration)]
        return {file for block in blocks for file in graph[block] if "/calibrations/" in file}

    both = {CALIBRATION.format("recall"), CALIBRATION.format("corpus")}
    assert calibrations("looped", 0) == calibrations("wide_looped", 2) == both
    assert calibrations("for/recall/wide_looped", 2, "corpus") == both
    assert (
        calibrations("accuracy", 2)
        == calibrations("looped_once", 0)
        == {CALIBRATION.format("recall")}
    )
    assert calibrations("for/recall/wide", 2, "corpus") == {CALIBRATION.format("corpus")}


def test_what_a_repair_is_fitted_on_is_read_and_listed(graph: Graph) -> None:
    patches = "results/patches/small/recall/accuracy/{}.safetensors"
    assert plan("accuracy", 1) in graph[patches.format("ghost")]
    assert (
        CALIBRATION.format("corpus")
        in graph[patches.format("general")] - graph[patches.format("ghost")]
    )
    assert CALIBRATION.format("corpus") in graph["results/tables/calibrations.parquet"]
    assert graph["results/tables/activations.parquet"] == {
        "results/activations/small/recall.parquet"
    }


def test_what_a_healing_trains_on_is_read(graph: Graph) -> None:
    for healing, added in (("alone", False), ("other", True), ("both", True)):
        read = graph[ADAPTER.format("ghost", healing) + "training.parquet"]
        assert (CALIBRATION.format("corpus") in read) == added and CALIBRATION.format(
            "recall"
        ) in read
        assert {
            plan("accuracy", 1),
            "results/patches/small/recall/accuracy/ghost.safetensors",
        } <= read
        bare = graph[ADAPTER.format("none", healing) + "training.parquet"]
        assert not [file for file in bare if "/patches/" in file]


def test_variants_are_measured_from_the_files_that_make_them(graph: Graph) -> None:
    made = {
        ADAPTER.format(repair, h) + "training.parquet"
        for repair in ("none", "ghost", "general")
        for h in HEALINGS
    }
    patches = {
        f"results/patches/small/recall/accuracy/{repair}.safetensors"
        for repair in ("ghost", "general")
    }
    read = graph["results/benchmarks/small/recall/microworld_recall/block=0.parquet"]
    assert read >= made | patches | {plan("accuracy", 1)}
    # Adapters are merged into the weights and cost nothing.
    assert graph["results/efficiency/small.parquet"] >= patches | {
        plan("accuracy", 1),
        plan("evolved", 1),
    }
    assert not made & graph["results/efficiency/small.parquet"]


def test_a_benchmark_waits_for_the_checks_of_all_calibrations_that_made_its_variants(
    graph: Graph,
) -> None:
    def checks(calibration: str) -> set[str]:
        read = graph[f"results/benchmarks/small/{calibration}/microworld_recall/block=0.parquet"]
        return {file for file in read if "/overlap/" in file or "/tasks/" in file}

    waited = {
        f"results/overlap/small/{name}/microworld_recall.json" for name in ("corpus", "recall")
    }
    assert checks("recall") == waited and checks("none") == {
        "results/tasks/microworld_recall.parquet"
    }
    assert graph["results/tables/shared_documents.parquet"] >= waited


def test_every_job_that_loads_a_model_waits_for_its_check(graph: Graph) -> None:
    loading = [
        file
        for file in graph
        if file.split("/")[1] in ("activations", "patches", "benchmarks", "efficiency")
    ]
    loading += [
        file for file in graph if "/adapters/" in file or "/block=" in file or "/searches/" in file
    ]
    assert len(loading) > 20
    assert all("results/models/small/check.json" in graph[file] for file in loading)


def test_an_export_reads_what_makes_the_variant_and_starts_no_benchmark(graph: Graph) -> None:
    folder = "results/exports/small/recall/accuracy/removed=1/"
    adapter = {
        ADAPTER.format("ghost", "both") + name
        for name in ("adapter_model.safetensors", "adapter_config.json")
    }
    patch = "results/patches/small/recall/accuracy/ghost.safetensors"
    assert graph[f"{folder}ghost/both"] == {MODEL, plan("accuracy", 1), patch} | adapter
    assert graph[f"{folder}none/none"] == {MODEL, plan("accuracy", 1)}

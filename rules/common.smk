# The only file with functions. Needs: the config. Gives: CONFIG (checked, defaults filled in), what the rules read from
# it, and the digests that decide what is stale.
import atexit
import gc
import json
import os
import re
import shlex
import socket
import sys
from functools import cache
from pathlib import Path

import yaml
from snakemake.exceptions import WorkflowError

ROOT = Path(workflow.basedir)
SCRIPTS = f"{workflow.basedir}/workflow/scripts"
sys.path.insert(0, str(ROOT / "src"))

from lamina.config import load as lamina_config
from lamina.tables import store
from lamina.workflow import studies
from lamina.data.documents import corpus_file
from lamina.workflow.digest import code_digest, file_digest
from lamina.errors import LaminaError
from lamina.models.manifest import fingerprint

# The graph of jobs is large and holds no garbage: looking for some takes a third of the start and end of a large run.
gc.disable()
atexit.register(gc.freeze)

try:
    CONFIG = lamina_config.load(config, Path.cwd())
except LaminaError as error:
    raise WorkflowError(str(error))

# Jobs find the library without being installed and use this interpreter, or the `python` of the folder LAMINA_BIN, which
# may start a container (docs/cluster.md).
BIN = os.environ.get("LAMINA_BIN", Path(sys.executable).parent)
shell.prefix(
    f"set -euo pipefail; export PYTHONPATH={ROOT}/src PATH={BIN}:$PATH "
    "TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1; "
)
# GPU stages start on a device of their own and stay off the network: only the preparing rules may download.
ON_GPU = "export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1; python -m lamina.workflow.gpu_lock"
CLUSTER_THREADS = 4  # beside a GPU: one feeds it, the others tokenise and read weights

FIGURES = [
    "relevance_maps",
    "angular_triangle",
    "relevance_agreement",
    "pruning_curves",
    "repair_bars",
    "cross_task",
    "training_curves",
    "efficiency",
]
BASE_SWEEP = r"base/(?:removal|stream|gradient|weights)/(?:layer|attention|mlp)"
# Hash of the pinned packages, for the rules whose numbers depend on them.
packages = file_digest(ROOT / "requirements.lock")
TASKS = CONFIG["benchmarks"]["tasks"]
TEXTS = CONFIG["benchmarks"]["perplexity"]


def any_of(names, *more):
    """A wildcard constraint that allows these names and no others."""
    return "|".join([*map(re.escape, names), *more]) or "$^"


wildcard_constraints:
    model=any_of(CONFIG["models"]),
    calibration=any_of(CONFIG["calibrations"], "none"),
    selector=any_of(CONFIG["selectors"], BASE_SWEEP),
    recovery=any_of(CONFIG["recoveries"], "none"),
    healing=any_of(CONFIG["healings"]),
    task=any_of([*TASKS, *TEXTS]),
    table=any_of(store.TABLES),
    figure=any_of(FIGURES),
    removed=r"\d+",
    block=r"\d+",


def digest(script, *modules):
    """Hash of a rule's script and of all code that it can reach; comments and formatting do not count."""
    return code_digest(f"workflow/scripts/{script}.py", *modules)


@cache
def entry(*path):
    """A config entry as JSON, the way scripts take it."""
    value = CONFIG
    for key in path:
        value = value[key]
    return json.dumps(value, sort_keys=True)


def row_keys(wildcards):
    """The key columns of a sweep, plan or relevance table, as JSON."""
    selector = wildcards.selector.split("/")[0]
    return json.dumps(
        {
            "model": wildcards.model,
            "calibration": wildcards.calibration,
            "selector": selector,
            "removed": int(wildcards.removed),
        }
    )


def threads_each(_):
    """GPU stages share the cores of a machine without a GPU between two jobs."""
    return max(1, threads_alone(_) // 2) if on_this_machine() else CLUSTER_THREADS


def threads_alone(_):
    """Timing wants the machine to itself."""
    return workflow.cores if on_this_machine() else CLUSTER_THREADS


def on_this_machine():
    """Whether jobs run beside this process; a job of a cluster must not count the cores of its node."""
    return workflow.local_exec and not workflow.remote_exec


def weights_gb(manifest):
    """Gigabytes of a model's weights in the type it is loaded with."""
    model = json.loads(Path(manifest).read_text())
    size = {"float32": 4, "float16": 2, "bfloat16": 2}.get(model["dtype"])
    return (model["parameters"] * size if size else model["weights_bytes"]) / 1e9


def memory(wildcards, input, attempt):
    """Megabytes of host memory: the libraries, the weights, and as much again where a stage changes them."""
    return round(attempt * (3000 + 2000 * weights_gb(input.manifest)))


def minutes(wildcards, input, attempt):
    """Time limit: loading and measuring grow with the weights, benchmarks with the variants that they go through."""
    turns = 1 + len(input.get("variants", [])) / 4
    return round(attempt * (20 + 6 * weights_gb(input.manifest) * turns))


def task_files(name, options):
    """Local files behind a task or text, so that editing them makes stale what reads them."""
    if options.get("choices"):
        return [options["choices"]]
    if "text" in options:
        return [str(corpus_file(options["text"], options.get("split"), Path()))]
    definition = Path("workflow/tasks") / f"{name}.yaml"
    if not definition.is_file():
        return []
    data = yaml.safe_load(definition.read_text()).get("dataset_kwargs", {}).get("data_files", {})
    return [str(definition), *data.values()]


def calibration_files(wildcards):
    options = CONFIG["calibrations"][wildcards.calibration]
    names = options.get("tasks") or [options.get("task")]
    return [file for name in names for file in task_files(name, options)]


def benchmark_entry(task):
    return TASKS[task] if task in TASKS else TEXTS[task]


def sweep_settings(wildcards):
    """(pass, kind of unit, budget) of a sweep."""
    return studies.sweep_settings(CONFIG, wildcards.selector)


def options(**values):
    """Command-line options, quoted; those without a value are left out. One string per job keeps large runs quick."""
    given = {name: str(value) for name, value in values.items() if value is not None}
    return " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())


def sweep_arguments(wildcards):
    """What a sweep measures, as the script takes it."""
    what, units, budget = sweep_settings(wildcards)
    early = None
    if budget != "full":
        names = ("budget", "metric", "protect", "confidence", "tolerance", "seed")
        early = {name: CONFIG["selectors"][wildcards.selector][name] for name in names}
        early |= {"score": CONFIG["calibrations"][wildcards.calibration]["score"], "step": int(wildcards.removed) + 1}
        early = json.dumps(early, sort_keys=True)
    return options(
        plan=sweep_plan(wildcards) or None,
        what=what,
        units=units,
        budget=early,
        block=wildcards.block,
        blocks=sweep_block_count(wildcards),
        tokens=CONFIG["sweep"]["tokens"],
        keys=row_keys(wildcards),
    )


def sweep_plan(wildcards):
    """The plan that says which units are gone before a sweep; none for the unpruned model."""
    if int(wildcards.removed) == 0:
        return []
    return (
        f"results/plans/{wildcards.model}/{wildcards.calibration}/{wildcards.selector}/removed={wildcards.removed}.json"
    )


def score_arguments(wildcards):
    """How a sweep is turned into scores, as the script takes it."""
    score = CONFIG["calibrations"][wildcards.calibration]["score"]
    return options(score=score, seed=CONFIG["seed"], keys=row_keys(wildcards))


def prune_code(wildcards):
    """Code behind a plan: its strategy is imported by name."""
    return digest("prune_step", f"lamina.search.{CONFIG['selectors'][wildcards.selector]['strategy']}")


def prune_arguments(wildcards):
    """How a plan is made, as the script takes it."""
    return options(
        selector=entry("selectors", wildcards.selector),
        keys=row_keys(wildcards),
        score=CONFIG["calibrations"][wildcards.calibration]["score"],
        **step_evidence(wildcards),
    )


def sweep_code(wildcards):
    """Code behind a sweep: its pass or budget is imported by name."""
    what, _, budget = sweep_settings(wildcards)
    if what in ("weights", "gradient"):
        return digest("sweep_units", "lamina.sweep.weights")
    return digest("sweep_units", *([] if budget == "full" else [f"lamina.search.{budget}"]))


def sweep_block_count(wildcards):
    """Jobs of a sweep: budgets compare all units as they go, and passes over the weights are not worth sharing."""
    what, _, budget = sweep_settings(wildcards)
    return 1 if budget != "full" or what in ("weights", "gradient") else CONFIG["sweep"]["blocks"]


def sweep_blocks(wildcards):
    return expand(
        "results/sweeps/{model}/{calibration}/{selector}/removed={removed}/block={block}.parquet",
        **wildcards,
        block=range(sweep_block_count(wildcards)),
    )


def current_sweep(wildcards, folder):
    """The sweep (or relevance) on which a step to `removed` units is decided."""
    strategy = CONFIG["selectors"][wildcards.selector]["strategy"]
    what, kind, budget = sweep_settings(wildcards)
    before = int(wildcards.removed) - 1 if strategy == "iterative" else 0
    selector = f"base/{what}/{kind}" if before == 0 and budget == "full" else wildcards.selector
    return f"results/{folder}/{wildcards.model}/{wildcards.calibration}/{selector}/removed={before}.parquet"


def step_evidence(wildcards):
    """What a plan is made from, by strategy."""
    selector = CONFIG["selectors"][wildcards.selector]
    place = f"{wildcards.model}/{wildcards.calibration}"
    if selector["strategy"] == "block":
        return {"activations": f"results/activations/{place}.parquet"}
    if studies.step_pass(CONFIG, wildcards.selector) is None:
        return {}
    evidence = {
        "relevance": current_sweep(wildcards, "relevance"),
        "sweep": current_sweep(wildcards, "sweeps"),
    }
    if selector["strategy"] == "iterative" and int(wildcards.removed) > 1:
        before = int(wildcards.removed) - 1
        evidence["previous"] = f"results/plans/{place}/{wildcards.selector}/removed={before}.json"
    return evidence


def variant_files(variant):
    """The files that make a variant, as the benchmark scripts take them; None where it has none."""
    repaired, healed = variant.recovery != "none", variant.healing != "none"
    return {
        "plan": None if variant.is_base else f"results/plans/{variant.plan}.json",
        "patch": f"results/patches/{variant.patch}.safetensors" if repaired else None,
        "adapter": f"results/adapters/{variant.adapter}" if healed else None,
    }


def variants_json(variants):
    """Variants as the benchmark scripts take them."""
    return f"[{', '.join(map(variant_json, variants))}]"


@cache
def variant_json(variant):
    names = ("calibration", "selector", "removed", "recovery", "healing")
    return json.dumps({name: getattr(variant, name) for name in names} | variant_files(variant))


def variants_input(variants):
    files = [file for variant in variants for file in variant_files(variant).values() if file]
    return sorted({f"{file}/training.parquet" if file.startswith("results/adapters") else file for file in files})


def block_of(wildcards):
    return block_variants(wildcards.model, wildcards.calibration, wildcards.task, int(wildcards.block))


@cache
def block_variants(model, calibration, task, block):
    return studies.block_variants(CONFIG, model, calibration, task, block)


def export_input(wildcards):
    """What an export is made from. Its card shows benchmarks that are there; none is started for it."""
    w, variant = wildcards, studies.Variant(**{**wildcards, "removed": int(wildcards.removed)})
    if w.recovery != "none" and variant.removed not in studies.sizes(CONFIG, *variant.patch.split("/")):
        raise WorkflowError(
            f"no study fits recovery '{w.recovery}' to removed={w.removed} of {w.model}/{w.calibration}/{w.selector}. "
            f"Add {w.removed} to `removed` (and '{w.recovery}' to `recoveries`) of a study."
        )
    files = {name: file for name, file in variant_files(variant).items() if file}
    if w.healing != "none":
        files["adapter"] = [f"{files['adapter']}/adapter_{part}" for part in ("model.safetensors", "config.json")]
    measured = [
        f"results/benchmarks/{model}/{calibration}/{task}/block={block}.parquet"
        for model, calibration, task, block in studies.benchmark_blocks(CONFIG)
        if model == w.model and calibration in (w.calibration, "none")
    ]
    there = [file for file in measured if Path(file).exists()]
    return files | {"manifest": f"results/models/{w.model}/manifest.json", "benchmarks": there}


def overlap_gate(wildcards):
    """A variant is benchmarked only on what its calibration does not hold."""
    if wildcards.calibration == "none":
        return [f"results/tasks/{wildcards.task}.parquet"]
    return [f"results/overlap/{wildcards.model}/{wildcards.calibration}/{wildcards.task}.json"]


def table_input(wildcards):
    """The files that one table is gathered from: exactly those that the config asks for."""
    return table_inputs()[wildcards.table]


@cache
def table_inputs():
    captures, variants, sweeps = studies.captures(CONFIG), studies.variants(CONFIG), studies.sweeps(CONFIG)
    patched = sorted({v.patch for v in variants if v.recovery != "none"})
    healed = sorted({v.adapter for v in variants if v.healing != "none"})
    blocks = [f"{m}/{c}/{task}/block={b}" for m, c, task, b in studies.benchmark_blocks(CONFIG)]
    measured = [m for m in CONFIG["models"] if studies.efficiency_variants(CONFIG, m)]
    return {
        "models": [f"results/models/{m}/manifest.json" for m in CONFIG["models"]],
        "calibrations": [f"results/calibrations/{m}/{c}.parquet" for m, c in captures],
        "activations": [f"results/activations/{m}/{c}.parquet" for m, c in captures],
        "sweeps": [f"results/sweeps/{m}/{c}/{s}/removed={n}.parquet" for m, c, s, n in sweeps],
        "relevance": [f"results/relevance/{m}/{c}/{s}/removed={n}.parquet" for m, c, s, n in sweeps],
        "plans": [f"results/plans/{m}/{c}/{s}/removed={n}.json" for m, c, s, n in studies.plans(CONFIG)],
        "patches": [f"results/patches/{patch}.parquet" for patch in patched],
        "training": [f"results/adapters/{adapter}/training.parquet" for adapter in healed],
        "benchmarks": [f"results/benchmarks/{block}.parquet" for block in blocks],
        "benchmark_samples": [f"results/benchmarks/{block}.samples.parquet" for block in blocks],
        "efficiency": [f"results/efficiency/{m}.parquet" for m in measured],
        "jobs": [],
    }


# When the run began, for its wall time in the report; jobs of a cluster read it from the shared folder.
STARTED = ".snakemake/lamina-started"


onstart:
    gc.freeze()
    gc.enable()
    Path(STARTED).touch()
    # Whether this process still lives is what `make resume-slurm` asks before it touches the run's jobs.
    Path(".snakemake/lamina-driver").write_text(f"{socket.gethostname()} {os.getpid()}\n")

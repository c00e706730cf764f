# What all rules share. Needs: the configuration. Gives: CONFIG (checked), the constraints of
# wildcards, and functions for params and resources. The options of a job are in
# lamina_workflow.stages, in the module with the same name as the rules file.
import atexit
import os
import shlex
import sys
import threading
from functools import cache
from pathlib import Path

from snakemake.logging import logger

# The folder of the workflow, also when another workflow uses it as a module. It is no local folder
# if that workflow fetches it from a repository. A clone contains its library; an installed workflow
# lies in the folder of its library.
ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parent
SOURCE = ROOT / "src"
if SOURCE.is_dir():
    sys.path.insert(0, str(SOURCE))

try:
    from lamina.paths import PROJECT
except ModuleNotFoundError as error:
    if error.name != "lamina":
        raise
    sys.exit(
        f"lamina: its library is not installed in {sys.prefix}, and a workflow that is fetched "
        "from a repository does not bring it. Install `lamina[workflow]` of the same version."
    )

# If lamina is installed, Snakemake has imported it already. A library in another folder would give
# other fingerprints.
if SOURCE.is_dir() and PROJECT != ROOT.resolve():
    sys.exit(
        f"lamina: the workflow is that of {ROOT}, and the library that Python found is that of "
        f"{PROJECT}: PYTHONPATH or the environment {sys.prefix} leads there. Write "
        f"`export PYTHONPATH={shlex.quote(str(SOURCE))}`, or give this folder an environment "
        "of its own: `rm -r .venv`, then `make run`."
    )

from lamina_workflow.config import text
from lamina.registry import declared_literals
from lamina_workflow.runtime import contents, failures, forkserver, online, preconditions
from lamina_workflow.runtime import devices as gpu
from lamina_workflow.runtime.log_handler import LogHandler
from lamina_workflow.runtime.resources import gpus_of_job, threads_of_job
from lamina_workflow.runtime.schedule import Capacity
from lamina_workflow.stages.job import Wildcards
from lamina.store.checksum import read_json
from lamina import paths
from lamina_workflow.study import requests, sweeps, tables
from lamina_workflow.checks import advice
from lamina_workflow.checks.cached import check_cached
from lamina_workflow.checks.load import load_configuration
from lamina.paths import any_of
from lamina.variant import Variant

# As a module, lamina receives its configuration, and the files belong to the other workflow.
# Otherwise lamina reads its configuration itself, as YAML 1.2: Snakemake reads `010` as 8. If a
# file asks for templates (yte), lamina takes the values that Snakemake has filled in.
is_module = Path(workflow.main_snakefile).resolve() not in (
    (ROOT / "Snakefile").resolve(),
    (ROOT / "workflow/Snakefile").resolve(),
)

with preconditions.end_with_message(workflow.configfiles):
    preconditions.check_folder(Path.cwd())
    if not is_module:
        read_values = text.merge_configurations(
            workflow.configfiles, workflow.config_settings.config
        )
        given_values = config if "__use_yte__" in read_values else read_values
    else:
        given_values = config
    CONFIG = load_configuration(given_values, Path.cwd())
    if online.is_offline(os.environ):
        check_cached(CONFIG, Path.cwd())
    STUDY = paths.study_name(workflow.configfiles)
    # Resources read the manifests while the graph is built. There, an error would name the rule
    # instead of the file.
    for model_name in [*CONFIG.models, *CONFIG.donors]:
        manifest = Path(paths.manifest(model_name))
        if manifest.exists():
            read_json(manifest)

# Only the main process writes this; the processes of single jobs do not repeat it.
if workflow.exec_mode.name == "DEFAULT" and advice.is_wanted(os.environ):
    for line in advice.advise_on(CONFIG, Path.cwd()):
        logger.warning(f"lamina: {line}")

# How jobs find the library, and settings that keep libraries quiet and offline. Only the rules of
# prepare.smk may use the network (lamina_workflow.runtime.online).
os.environ.setdefault("LAMINA_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
if SOURCE.is_dir():
    os.environ.update(PYTHONPATH=str(SOURCE))
os.environ.update(
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
)

# The environment of every job, for `--sdm conda`. The path is relative to a rules file.
ENVIRONMENT = "../envs/lamina.yaml"
# Priorities of jobs: benchmarks wait for these outputs, and the longest chain of jobs should begin
# first. The forecast of the time left waits for all preparing jobs.
PREPARING = 30
CHOOSING = 20
REPAIRING = 10
# When the run began, for its wall time; on a cluster in the shared folder.
STARTED = ".snakemake/lamina-started"


def params_of(kind, **facts):
    """The params of a rule; a changed value makes a job of the rule stale.

    options: The options of its jobs from the configuration.
    code: The fingerprint of the code that its jobs can reach.
    """
    return {
        "options": cache(lambda w: kind.of(CONFIG, wildcards_of(w, **facts)).options()),
        "code": cache(lambda w: kind.of(CONFIG, wildcards_of(w, **facts)).code()),
    }


def content(files):
    """The hashes of the user's files that a rule's jobs read; changed content makes a job stale."""
    return lambda w: contents.hash_files(files(w))


def wildcards_of(w, **facts):
    """The wildcards, and facts about the run that no configuration contains."""
    return Wildcards({**dict(w.items()), **facts})


def resources_of(kind):
    """What jobs that load a model request: GPUs, megabytes and minutes.

    They follow from the size of the model, and grow with every attempt.
    """

    def memory(w, input, attempt):
        return kind.of(CONFIG, wildcards_of(w)).memory(read_json(input.manifest), attempt)

    def minutes(w, input, attempt):
        return kind.of(CONFIG, wildcards_of(w)).minutes(read_json(input.manifest), attempt)

    return {"gpu": gpus, "mem_mb": memory, "runtime": minutes}


def share_of_cores(w):
    """Threads of a job that shares the cores with other jobs."""
    return threads_of_job(cores())


def every_core(w):
    """Threads of a job that needs the machine to itself, because it is timed."""
    return threads_of_job(cores(), alone=True)


def cores():
    """Cores of the machine that jobs share with this process; None on a cluster.

    A job of a cluster must not count the cores of its node.
    """
    return workflow.cores if runs_here() else None


def runs_here():
    """Whether jobs run on this machine, and this process is not itself a job of a cluster."""
    return workflow.local_exec and not workflow.remote_exec


@cache
def n_local_gpus():
    """GPUs of this machine."""
    return len(gpu.list_devices(os.environ))


@cache
def device_gb():
    """Gigabytes of one GPU."""
    return gpu.memory_gb(os.environ)


def gpus_of(w, input):
    """GPUs of a job: as many as the weights of its model need.

    Jobs of a cluster get what they ask for.
    """
    n_available = n_local_gpus() if runs_here() else None
    return gpus_of_job(CONFIG.models[w.model].devices, input.manifest, device_gb(), n_available)


# A large graph calls the functions of each job, so a value that is the same for all is a number.
gpus = 1 if all(model.devices == 1 for model in CONFIG.models.values()) else gpus_of


def calibrations_for(w, repair):
    """The other calibrations on which a repair of the plans of {selector} is fitted."""
    if repair == "none":
        return []
    planned_on = sweeps.SweepSelector.parse(w.selector).planned_on(w.calibration)
    names = set(requests.fitted_on(CONFIG, planned_on, repair)) - {w.calibration}
    return [f"results/calibrations/{w.model}/{name}.parquet" for name in sorted(names)]


def calibrations_in_loop(w):
    """The other calibrations on which the repair in the loop of {selector} is fitted."""
    return calibrations_for(w, sweeps.SweepSelector.parse(w.selector).repair(CONFIG))


wildcard_constraints:
    model=any_of(CONFIG.models),
    calibration=any_of(CONFIG.calibrations, "none"),
    selector=sweeps.any_selector(CONFIG),
    repair=any_of(CONFIG.repairs, "none"),
    healing=any_of(CONFIG.healings),
    diagnosis=any_of(CONFIG.diagnoses),
    task=any_of([*CONFIG.benchmarks.tasks, *CONFIG.benchmarks.perplexity]),
    removed=r"-?\d+",
    block=r"\d+",


# Under `--logger lamina`, the handler shows the progress of this workflow's jobs.
for handler in workflow.logger_manager.plugin_handlers:
    if isinstance(handler, LogHandler):
        machine = Capacity(cores(), n_local_gpus()) if runs_here() else None
        handler.follow(workflow, Path("results/cost.json"), machine)


# With `max-jobs-per-timespan: 360000/1h` (profiles/default), Snakemake starts a timer of one hour
# each time it looks for jobs. At the end of a run, Python waits for the last of these timers.
# docs/pipeline.md reproduces this in five lines.
def cancel_timers():
    """Wait for the end of the run, then cancel the timers that Snakemake has left."""
    threading.main_thread().join()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


threading.Thread(target=cancel_timers, daemon=True).start()


onstart:
    # A job of a cluster is not a separate run.
    if not workflow.remote_exec:
        preconditions.check_room(Path.cwd())
        preconditions.hold_results(Path("results"))
    Path(STARTED).touch()
    if workflow.local_exec and not n_local_gpus():
        forkserver.start_server()


onerror:
    # This is written after all messages of Snakemake.
    if log and not workflow.remote_exec:
        atexit.register(failures.print_first_failure, log[0])

# What all rules share. Needs: the config. Gives: CONFIG (checked), wildcard constraints, digests that decide what is
# stale, and how commands run. What a job reads, is told and asks of the machine is one object of lamina.stages.
import os
import shlex
import sys
from functools import cache
from pathlib import Path

from snakemake.settings.types import DeploymentMethod

# The folder of lamina, also if another workflow uses it as a module.
ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parent
sys.path.insert(0, str(ROOT / "src"))

import lamina

# If lamina is installed, Snakemake has imported it already. The library of another folder would have other digests.
if Path(lamina.__file__).resolve().parent != (ROOT / "src/lamina").resolve():
    sys.exit(
        f"lamina: the workflow is that of {ROOT}, and the library that Python found is in "
        f"{Path(lamina.__file__).resolve().parents[1]}: PYTHONPATH or the environment {sys.prefix} leads there. Write "
        f"`export PYTHONPATH={shlex.quote(str(ROOT / 'src'))}`, or give this folder an environment of its own: "
        "`rm -r .venv`, then `make run`."
    )

from lamina.config import text
from lamina.study.load import load
from lamina.stages.described import described
from lamina.study.variant import Variant
from lamina.study import paths
from lamina.store import checksum as seal
from lamina.runtime import commands, failures, devices as gpu_lock, progress
from lamina.stages import exports
from lamina.study import requests as studies
from lamina.registry import declared
from lamina.study.paths import KEY, any_of
from lamina.runtime.resources import devices, threads

# Priorities of jobs: benchmarks wait for what these give, and the longest chain of jobs should begin first.
CHOOSING, REPAIRING = 20, 10

with failures.refused(workflow.configfiles):
    for file in workflow.configfiles:
        text.check(file)
    CONFIG = load(config, Path.cwd())
    STUDY = paths.study(workflow.configfiles)
    # Rules read the manifests while the graph is built. An error there would name the rule and not the file.
    for manifest in map(Path, map(paths.manifest, [*CONFIG.models, *CONFIG.donors])):
        if manifest.exists():
            seal.read_json(manifest)

TABLES = declared("lamina.tables", "GRAIN")  # the grain of each
FIGURES = declared("lamina.report.figures", "TABLES")  # the tables that each reads
# All files behind the report; a run makes those anew that were deleted.
REPORTED = ["results/lamina.duckdb", *map(paths.table, TABLES)]
REPORTED += [file for figure in FIGURES for file in (paths.figure(figure), paths.figure_data(figure))]
TITLES = declared("lamina.report.figures", "TITLE")
ABOUT = declared("lamina.report.figures", "ABOUT")  # their captions in Snakemake's own report
BASE_SWEEP = r"base/(?:removal|stream|fit|gradient|weights)/(?:layer|attention|mlp)"
BESIDE_SWEEP = f"for/(?:{any_of(CONFIG.calibrations)})/(?:{any_of(CONFIG.selectors)})"

# An interpreter that Snakemake deploys must come first on PATH, so ours is not put there.
DEPLOYED = {DeploymentMethod.CONDA, DeploymentMethod.APPTAINER} & set(workflow.deployment_settings.deployment_method)
shell.prefix(commands.prefix(ROOT, None if DEPLOYED else Path(sys.executable)))


progress.follow(workflow, Path("results/cost.json"))


wildcard_constraints:
    model=any_of(CONFIG.models),
    calibration=any_of(CONFIG.calibrations, "none"),
    selector=any_of(CONFIG.selectors, BASE_SWEEP, BESIDE_SWEEP),
    repair=any_of(CONFIG.repairs, "none"),
    healing=any_of(CONFIG.healings),
    diagnosis=any_of(CONFIG.diagnoses),
    task=any_of([*CONFIG.benchmarks.tasks, *CONFIG.benchmarks.perplexity]),
    table=any_of(TABLES),
    figure=any_of(FIGURES),
    removed=r"\d+",
    block=r"\d+",

"""What a job loads is what it is hashed with: every module of lamina in its process, by name or by an import."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.checks.load import load
from lamina.runtime import fingerprint as digest
from lamina.stages.job import Job
from lamina.stages.sweep import GatherSweep
from tests.given.scripts import place
from tests.pipeline.project import Project, parse_jobs
from tests.stages.test_job import kinds

pytestmark = pytest.mark.slow

# Jobs are forks of a process that has the libraries and nothing of lamina. A fork says what it holds in the end.
RUNNER = """
import json, os, runpy, sys
import datasets, lm_eval.evaluator, peft, pyarrow.parquet, torch, transformers
torch.set_num_threads(1)
for line in sys.stdin:
    script, told, said = json.loads(line)
    if os.fork() == 0:
        sys.argv = [script, told]
        code = 0
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = repr(error)
        held = sorted(name for name in sys.modules if name.split(".")[0] == "lamina")
        by_name = sorted(sys.modules["lamina.modules"].loaded)
        open(said, "w").write(json.dumps({"code": code, "held": held, "by_name": by_name}))
        os._exit(0)
    os.wait()
"""
SOURCE: Any = {"cwd": digest._SOURCE, "capture_output": True, "text": True}
# Figures differ in their module alone; these load the most.
FIGURES = {"relevance_maps", "cost_of_metrics"}
# Writes what it finds of other runs, and the whole report again.
LEFT = {"collect_facts", "export_variant", "estimate_cost", "dequantise_model"}
# The comparison of metrics loads those that have scores, of all that there are.
MORE_DECLARED = {"compare_metrics"}
FACTS = {"study": "tiny", "files": "tiny.yaml", "started": "never", "form": "auto", "shard": "5GB"}


def jobs_of(project: Project) -> list[Job]:
    """One job of the finished study for every rule and set of modules that it loads by name."""
    known = {kind.rule(): kind for kind in kinds() if kind.__module__.startswith("lamina.stages.")}
    config = load(yaml.safe_load(project.config.read_text()), project.folder)
    found: dict[Any, Job] = {}
    for job in parse_jobs(project.run("-n", "--forceall").stdout):
        if job.rule in known.keys() - LEFT and job.wildcards.get("figure", "relevance_maps") in FIGURES:
            made = known[job.rule].of(config, place(**job.wildcards, **FACTS))
            found.setdefault((job.rule, made.modules), made)
    return list(found.values())


def aside(names: set[str]) -> set[str]:
    """Without what no number comes from, and packages, whose files hold a docstring only."""
    packages = {".".join(file.parent.relative_to(digest._SOURCE).parts) for file in digest._SOURCE.rglob("__init__.py")}
    return {name for name in names if not digest._is_aside(name)} - packages


@pytest.fixture(scope="module")
def ran(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """The jobs, written elsewhere, with what their processes held."""
    folder, before = tmp_path_factory.mktemp("loaded"), Path.cwd()
    os.chdir(finished.folder)
    try:
        made = jobs_of(finished)
    finally:
        os.chdir(before)
    lines = []
    for number, job in enumerate(made):
        elsewhere = folder / str(number)
        written: dict[str, Any] = {
            name: str(elsewhere / Path(getattr(job, name)).name) for name in job.OUTPUTS if hasattr(job, name)
        }
        if isinstance(job, GatherSweep):  # whose blocks were temporary: the whole is one of the same kind
            written["blocks"] = [job.output]
        (elsewhere.with_suffix(".json")).write_text(job.model_copy(update=written).told())
        script = finished.folder / f"workflow/scripts/{job.rule()}.py"
        lines.append(json.dumps([str(script), f"{elsewhere}.json", f"{elsewhere}.said"]))
    environment = os.environ | {"PYTHONPATH": str(finished.folder / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", RUNNER]
    text = "".join(f"{line}\n" for line in lines)
    subprocess.run(command, input=text, cwd=finished.folder, env=environment, text=True, check=True)
    return [(job, json.loads((folder / f"{number}.said").read_text())) for number, job in enumerate(made)]


def test_every_rule_of_a_study_is_among_them_and_runs(ran: list[tuple[Job, dict[str, Any]]]) -> None:
    assert len({job.rule() for job, _ in ran}) >= 20
    assert {job.rule(): said["code"] for job, said in ran if said["code"]} == {}


def test_loaded_modules_are_the_declared_ones(ran: list[tuple[Job, dict[str, Any]]]) -> None:
    for job, said in ran:
        left = set(job.modules) - set(said["by_name"])
        assert set(said["by_name"]) <= set(job.modules) and (not left or job.rule() in MORE_DECLARED), job.rule()


def test_all_that_a_job_holds_is_in_its_digest(ran: list[tuple[Job, dict[str, Any]]]) -> None:
    """But for what the classes of jobs import themselves, to be made from a configuration."""
    describing = "; ".join(["import sys", *(f"import {kind.__module__}" for kind in kinds()), "print(*sys.modules)"])
    described = set(subprocess.run([sys.executable, "-c", describing], **SOURCE, check=True).stdout.split())
    assert "torch" not in described
    for job, said in ran:
        reached = digest._closure((job.rule(), *job.modules), digest._SOURCE)
        assert aside(set(said["held"])) - described <= reached.keys(), job.rule()

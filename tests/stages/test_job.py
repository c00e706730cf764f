"""A job has its options from the configuration and its files from its rule, and its script reads nothing else."""

import ast
import gc
import importlib
import json
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.options import repairs
from lamina.repair.methods import ghost
from lamina.selection.options import Loop
from lamina_workflow import stages
from lamina_workflow.stages.job import READ, WRITTEN, Job, OnModel, Wildcards
from lamina_workflow.stages.prune import PickPlan
from lamina_workflow.stages.repair import FitPatch
from lamina_workflow.stages.sweep import SweepUnits
from tests import ROOT
from tests.given.scripts import run_in_subprocess, script_arguments, snakemake_stand_in

# On demand only, with files that nothing of a study reads.
TRAINING = {"train_reference", "train_sibling"}
# Inputs that jobs wait for or find by their options, and outputs beside the one that they are told.
IMPLIED = {"files", "overlap", "adapter", "settings"}
# What loads modules by a name: what a job so loads, its class declares.
LOADING = {
    "src/lamina/__init__.py",
    "src/lamina/notebook.py",
    "src/lamina/options/entry.py",
    "src/lamina/relevance/protocol.py",
    "src/lamina/repair/fitting.py",
    "src/lamina/repair/protocol.py",
    "src/lamina/selection/choosing.py",
    "src/lamina/selection/judging.py",
    "src/lamina/selection/options.py",
    "src/lamina/selection/removals.py",
    "src/lamina/selection/sets.py",
    "src/lamina/selection/strategies/portfolio.py",
    "src/lamina/selection/trials.py",
    "src/lamina/tables/__init__.py",
    "src/lamina_workflow/__init__.py",
    "src/lamina_workflow/cost/rehearsal.py",
    "src/lamina_workflow/report/figures/drawing.py",
    "src/lamina_workflow/runtime/forkserver.py",
    "workflow/scripts/diagnose_layers.py",
    "workflow/scripts/heal_variant.py",
    "workflow/scripts/prune_step.py",
    "workflow/scripts/search_plans.py",
}
RULES = {
    name: text
    for file in sorted((ROOT / "rules").glob("*.smk"))
    for name, text in re.findall(
        r"^rule (\w+):\n(.*?)(?=^\S|\Z)", file.read_text(encoding="utf-8"), re.M | re.S
    )
}


def kinds(base: type[Any] = Job) -> list[type[Any]]:
    """The classes of all jobs."""
    for _, name, _ in pkgutil.iter_modules(stages.__path__):
        importlib.import_module(f"lamina_workflow.stages.{name}")
    return [each for kind in base.__subclasses__() for each in (kind, *kinds(kind))]


JOBS = {kind.rule(): kind for kind in kinds() if not kind.__subclasses__()}


def a_sweep(**more: Any) -> SweepUnits:
    ghost = repairs.Repair.from_options({"method": "ghost", "rank": 8})
    loop = Loop(repair=ghost, weights=[("c", 1.0)], protect=[0], seed=3)
    options = {
        "pass_": "removal",
        "units": "layer",
        "loop": loop,
        "block": 1,
        "blocks": 2,
        "tokens": 64,
    }
    files = {"manifest": "m.json", "calibration": "c.parquet", "output": "it's {a} $b.parquet"}
    return SweepUnits(**options | {"keys": {"calibration": "c"}} | files | more)


def read_back(job: Job, **params: Any) -> Any:
    """The job that its script reads, whose params went through JSON as those of a job of a cluster do."""
    described = json.loads(json.dumps(script_arguments(job)))
    return type(job).read(
        snakemake_stand_in(**described | {"params": described["params"] | params})
    )


def test_a_job_is_read_with_its_types_from_what_snakemake_gives() -> None:
    job = a_sweep(data={"d": "calibrations/m/d.parquet"}, manifests={"s": "models/s/manifest.json"})
    again = read_back(job)
    assert again.model_dump() == job.model_dump()
    assert isinstance(again.loop.repair, ghost.Ghost) and again.loop.repair.rank == 8


def test_files_come_by_their_names_alone_in_lists_or_by_what_they_are_of() -> None:
    """Snakemake gives one file of an input function in a list, and none as an empty one."""
    read = {"manifest": ["m.json"], "check": ["check.json"], "calibration": "c.parquet", "plan": []}
    read |= {
        "data": ["calibrations/m/d.parquet"],
        "manifests": ["models/s/manifest.json"],
        "more": "other.txt",
    }
    params = Wildcards(options=a_sweep().options(), code="c")  # type: ignore[arg-type]
    files = {"input": SimpleNamespace(**read), "output": SimpleNamespace(output="o.parquet")}
    job = SweepUnits.read(SimpleNamespace(**files, params=params, wildcards={}))
    assert (job.manifest, job.check, job.plan, job.output) == (
        "m.json",
        "check.json",
        None,
        "o.parquet",
    )
    assert job.data == {"d": "calibrations/m/d.parquet"} and job.manifests == {
        "s": "models/s/manifest.json"
    }


def test_what_is_not_asked_for_is_no_option_so_that_a_new_one_changes_no_job() -> None:
    class Grown(SweepUnits):
        added: str | None = None

    job = a_sweep()
    assert (
        Grown(**{name: getattr(job, name) for name in SweepUnits.model_fields}).options()
        == job.options()
    )
    assert not {"replacements", "follows"} & job.options().keys()
    # Other tests list the jobs that there are.
    del Grown
    gc.collect()
    assert not SweepUnits.__subclasses__()


def test_files_are_no_options() -> None:
    """Snakemake compares the inputs of a job itself, and an output says where, and not what."""
    files = {"manifest": "other", "plan": "p", "data": {"d": "d"}, "output": "elsewhere"}
    assert a_sweep(**files).options() == a_sweep().options()


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_no_number_hides_in_a_default(kind: type[Any]) -> None:
    """What a job leaves out it has not asked for; a number there would change what is measured and no param."""
    for name, field in kind.model_fields.items():
        asked_for = field.get_default() if not {READ, WRITTEN} & {*field.metadata} else None
        assert field.is_required() or asked_for in (None, False, [], {}), f"{kind.__name__}.{name}"


def test_a_job_is_frozen_and_knows_no_other_option() -> None:
    with pytest.raises(ValueError, match="frozen"):
        a_sweep().tokens = 5  # type: ignore[misc]
    with pytest.raises(ValueError, match="made_up"):
        a_sweep(made_up=1)


def test_where_a_job_writes_and_which_block_it_is_say_nothing_of_its_origin() -> None:
    one, other = a_sweep(), a_sweep(block=0, output="elsewhere.parquet", follows={"family": "x"})
    assert one.provenance == other.provenance != a_sweep(tokens=128).provenance
    fit: dict[str, Any] = {"sizes": [], "name": "g", "own": "c", "seed": 5}
    fit["repair"] = repairs.Repair.from_options({"method": "ghost"})
    assert FitPatch(**fit).provenance["seed"] == "5"


def test_only_known_modules_load_others_by_name() -> None:
    """The digest of a job follows import statements, and modules that its class declares."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "workflow/scripts").glob("*.py")]
    loading = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if re.search(r"import_module\(|__import__", file.read_text(encoding="utf-8"))
    }
    assert loading == LOADING


def test_a_rule_a_job_and_a_script_have_one_name() -> None:
    scripts = {file.stem for file in (ROOT / "workflow/scripts").glob("*.py")}
    run = {name for name, text in RULES.items() if "script:" in text}
    assert run == JOBS.keys() == scripts - TRAINING


@pytest.mark.parametrize("rule", JOBS)
def test_a_rule_names_all_files_of_its_job_and_takes_the_rest_from_its_class(rule: str) -> None:
    sections = dict(re.findall(r"^    (\w+):\n((?:        .*\n|\n)+)", RULES[rule], re.MULTILINE))
    for section, mark in (("input", READ), ("output", WRITTEN)):
        named = set(re.findall(r"^        (\w+)=", sections.get(section, ""), re.MULTILINE))
        fields = {name for name, field in JOBS[rule].model_fields.items() if mark in field.metadata}
        assert fields - {"check"} <= named <= fields | IMPLIED, f"{rule}: {section}"
    kind = rf"\(\w+\.{JOBS[rule].__name__}\b"
    assert re.search(rf"\*\*params_of{kind}", sections["params"])
    assert f"scripts/{rule}.py" in sections["script"]
    if issubclass(JOBS[rule], OnModel):
        assert re.search(rf"\*\*resources_of{kind}", sections["resources"])


@pytest.mark.parametrize("rule", JOBS)
def test_every_script_reads_its_job_and_no_command_line(rule: str) -> None:
    text = (ROOT / f"workflow/scripts/{rule}.py").read_text(encoding="utf-8")
    attributes = {
        node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)
    }
    assert (
        f"{JOBS[rule].__name__}.read(snakemake)" in text and "with run_script(snakemake):" in text
    )
    assert not {"argv", "add_argument"} & attributes


def manifest(**facts: Any) -> dict[str, Any]:
    return {
        "dtype": "bfloat16",
        "parameters": 8_000_000_000,
        "weights_bytes": 16_000_000_000,
        **facts,
    }


def test_a_later_attempt_asks_for_more() -> None:
    """With a repair in place: the sums of eight runs and their fit, beyond the 2 GB of a pass, and 1 GB of patches."""
    wide = manifest(hidden_size=4096)
    fit = (32 + 6) * 4096**2 * 8 - 2 * 1024**3 + 1024**3
    asked = [a_sweep().memory(wide, attempt) for attempt in (1, 2)]
    assert asked == [35_000 + round(fit / 1e6), 70_000 + round(2 * fit / 1e6)]
    bare = a_sweep().model_copy(update={"loop": None})
    assert [bare.memory(wide, attempt) for attempt in (1, 2)] == [35_000, 70_000]
    assert [a_sweep().minutes(manifest(), attempt) for attempt in (1, 3)] == [116, 348]


def test_a_fit_holds_its_maps_and_those_of_all_weights_that_are_tried() -> None:
    """C² float32 numbers each, with and without the held-out samples, and what is written: at C = 4096 67 MB.

    The sums of three runs take 1.6 GB and their fit .8 GB more, which is .25 GB more than a pass may.
    """
    options: dict[str, Any] = {"sizes": [1, 2], "name": "g", "own": "c", "seed": 0}
    options["repair"], model = (
        repairs.Repair.from_options({"method": "ghost"}),
        manifest(hidden_size=4096),
    )
    fitting = 4 * 3 * 4096**2 * 8 + 6 * 4096**2 * 8 - 2 * 1024**3
    one = FitPatch(**options, weights=[("c", 1.0)])
    assert one.memory(model, 1) == 35_000 + round((fitting + 3 * 3 * 4096**2 * 4) / 1e6)
    every = FitPatch(**options)
    assert every.memory(model, 2) == 2 * 35_000 + round(2 * (fitting + 15 * 3 * 4096**2 * 4) / 1e6)


def test_a_script_says_what_is_wrong_with_a_word(tmp_path: Path) -> None:
    done = run_in_subprocess(PickPlan(removed=1, plans=str(tmp_path / "none.json")), tmp_path)
    assert done.returncode == 1 and "none.json" in done.stderr


def test_an_unknown_option_of_an_entry_is_refused_as_in_a_configuration() -> None:
    options = json.loads(json.dumps(a_sweep().options()).replace('"rank"', '"rnak"'))
    with pytest.raises(LaminaError, match="rnak.*Did you mean 'rank'"):
        read_back(a_sweep(), options=options)

"""A job has its options from the configuration and its files from its rule, and no more."""

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
from lamina.repairs.methods import ghost
from lamina.selection.options import Loop
from lamina_workflow import stages
from lamina_workflow.stages.job import READ, WRITTEN, Job, OnModel
from lamina_workflow.stages.prune import PickPlan
from lamina_workflow.stages.repair import FitPatch
from lamina_workflow.stages.sweep import SweepUnits
from tests import ROOT
from tests.given.scripts import run_in_subprocess, script_arguments, snakemake_stand_in

SCRIPTS = ROOT / "workflow/scripts"
# On demand only, with files that nothing of a study reads.
TRAINING_SCRIPTS = {"train_reference", "train_sibling"}
# Inputs that jobs wait for or find by their options, and outputs next to the one that they name.
IMPLIED_FILES = {"files", "overlap", "adapter", "settings"}
# Modules that import others by a name; the class of a job declares what it loads in this way.
LOADING_BY_NAME = {
    "src/lamina/__init__.py",
    "src/lamina/api/selection.py",
    "src/lamina/api/variants.py",
    "src/lamina/options/entry.py",
    "src/lamina/relevance/protocol.py",
    "src/lamina/repairs/fitting.py",
    "src/lamina/repairs/protocol.py",
    "src/lamina/selection/choosing.py",
    "src/lamina/selection/proposing.py",
    "src/lamina/selection/removals.py",
    "src/lamina/selection/rounds.py",
    "src/lamina/selection/sets.py",
    "src/lamina/selection/strategies/portfolio.py",
    "src/lamina/selection/trials.py",
    "src/lamina/tables/__init__.py",
    "src/lamina_workflow/__init__.py",
    "src/lamina_workflow/report/figures/drawing.py",
    "src/lamina_workflow/runtime/forkserver.py",
    "workflow/scripts/diagnose_layers.py",
    "workflow/scripts/heal_variant.py",
    "workflow/scripts/prune_step.py",
    "workflow/scripts/search_plans.py",
    "workflow/scripts/sweep_units.py",
}


def read_rules() -> dict[str, str]:
    """The text of each rule, by its name."""
    rules: dict[str, str] = {}
    for file in sorted((ROOT / "rules").glob("*.smk")):
        text = file.read_text(encoding="utf-8")
        rules |= dict(re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", text, re.M | re.S))
    return rules


def list_job_classes(base: type[Any] = Job) -> list[type[Any]]:
    """All classes of jobs, also those that other classes inherit from."""
    for _, name, _ in pkgutil.iter_modules(stages.__path__):
        importlib.import_module(f"lamina_workflow.stages.{name}")
    classes: list[type[Any]] = []
    for job_class in base.__subclasses__():
        classes += [job_class, *list_job_classes(job_class)]
    return classes


RULES = read_rules()
JOB_CLASSES = list_job_classes()
# The class of each rule.
JOBS = {job_class.rule(): job_class for job_class in JOB_CLASSES if not job_class.__subclasses__()}
GHOST = repairs.Repair.from_options({"method": "ghost"})


def make_sweep(**changes: Any) -> SweepUnits:
    """A removal sweep with a repair in its loop."""
    repair = repairs.Repair.from_options({"method": "ghost", "rank": 8})
    fields: dict[str, Any] = {
        "pass_": "removal",
        "units": "layer",
        "loop": Loop(repair=repair, weights=[("c", 1.0)], protect=[0], seed=3),
        "block": 1,
        "blocks": 2,
        "tokens": 64,
        "keys": {"calibration": "c"},
        "manifest": "m.json",
        "calibration": "c.parquet",
        "output": "it's {a} $b.parquet",
    }
    return SweepUnits(**fields | changes)


def read_back(job: Job, **params: Any) -> Any:
    """The job that its script reads; on a cluster its params go through JSON."""
    passed_on = json.loads(json.dumps(script_arguments(job)))
    passed_on["params"] |= params
    return type(job).read(snakemake_stand_in(**passed_on))


def test_a_job_is_read_with_its_types_from_what_snakemake_gives() -> None:
    job = make_sweep(data={"d": "calibrations/m/d.parquet"})

    job_of_script = read_back(job)

    assert job_of_script.model_dump() == job.model_dump()
    assert isinstance(job_of_script.loop.repair, ghost.Ghost)
    assert job_of_script.loop.repair.rank == 8


def test_files_are_read_by_their_names_in_a_rule() -> None:
    """Snakemake gives one file of an input function in a list, and none as an empty one."""
    inputs = SimpleNamespace(
        manifest=["m.json"],
        check=["check.json"],
        calibration="c.parquet",
        plan=[],
        data=["calibrations/m/d.parquet"],
        more="other.txt",
    )
    snakemake = snakemake_stand_in({}, {"output": "o.parquet"}, {"options": make_sweep().options()})
    snakemake.input = inputs
    snakemake.params["code"] = "c"

    job = SweepUnits.read(snakemake)

    assert job.manifest == "m.json"
    assert job.check == "check.json"
    assert job.plan is None
    assert job.output == "o.parquet"
    assert job.data == {"d": "calibrations/m/d.parquet"}


def test_a_new_option_that_is_not_asked_for_changes_no_job() -> None:
    class ExtendedSweep(SweepUnits):
        added: str | None = None

    sweep = make_sweep()
    fields = {name: getattr(sweep, name) for name in SweepUnits.model_fields}

    assert ExtendedSweep(**fields).options() == sweep.options()

    # Other tests list the jobs that there are.
    del ExtendedSweep
    gc.collect()
    assert not SweepUnits.__subclasses__()


def test_an_option_that_is_not_asked_for_is_left_out() -> None:
    options = make_sweep().options()

    assert "follows" not in options


def test_files_are_no_options() -> None:
    """Snakemake compares the inputs of a job itself, and an output says where, and not what."""
    elsewhere = make_sweep(manifest="other", plan="p", data={"d": "d"}, output="elsewhere")

    assert elsewhere.options() == make_sweep().options()


@pytest.mark.parametrize("job_class", JOB_CLASSES, ids=lambda job_class: job_class.__name__)
def test_an_option_is_required_or_by_default_not_asked_for(job_class: type[Any]) -> None:
    """A number as a default would change what is measured, and no params of a rule."""
    for name, field in job_class.model_fields.items():
        is_file = READ in field.metadata or WRITTEN in field.metadata
        if not field.is_required() and not is_file:
            assert field.get_default() in (None, False, [], {}), name


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        make_sweep().tokens = 5  # type: ignore[misc]


def test_a_job_refuses_an_unknown_option() -> None:
    with pytest.raises(ValueError, match="made_up"):
        make_sweep(made_up=1)


def test_the_provenance_of_a_row_is_that_of_all_blocks_and_outputs() -> None:
    changed = make_sweep(block=0, output="elsewhere.parquet", follows={"family": "x"})

    assert changed.provenance == make_sweep().provenance
    assert make_sweep(tokens=128).provenance != make_sweep().provenance


def test_the_provenance_of_a_row_has_its_seed() -> None:
    job = FitPatch(sizes=[], name="g", own="c", seed=5, repair=GHOST)

    assert job.provenance["seed"] == "5"


def test_only_known_modules_import_others_by_name() -> None:
    """The digest of a job follows import statements, and modules that its class declares."""
    files = [*(ROOT / "src").rglob("*.py"), *SCRIPTS.glob("*.py")]

    loading = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if re.search(r"import_module\(|__import__", file.read_text(encoding="utf-8"))
    }

    assert loading == LOADING_BY_NAME


def test_a_rule_a_job_and_a_script_have_one_name() -> None:
    scripts = {file.stem for file in SCRIPTS.glob("*.py")}
    rules_with_script = {name for name, text in RULES.items() if "script:" in text}

    assert rules_with_script == JOBS.keys()
    assert rules_with_script == scripts - TRAINING_SCRIPTS


def read_sections(rule: str) -> dict[str, str]:
    """The text of each section of a rule, such as `input`."""
    return dict(re.findall(r"^    (\w+):\n((?:        .*\n|\n)+)", RULES[rule], re.MULTILINE))


@pytest.mark.parametrize(("section", "mark"), [("input", READ), ("output", WRITTEN)])
@pytest.mark.parametrize("rule", JOBS)
def test_a_rule_names_all_files_of_its_job(rule: str, section: str, mark: Any) -> None:
    text = read_sections(rule).get(section, "")
    named = set(re.findall(r"^        (\w+)=", text, re.MULTILINE))

    fields = {name for name, field in JOBS[rule].model_fields.items() if mark in field.metadata}
    assert named >= fields - {"check"}
    assert named <= fields | IMPLIED_FILES


@pytest.mark.parametrize("rule", JOBS)
def test_a_rule_takes_its_params_from_the_class_of_its_job(rule: str) -> None:
    sections = read_sections(rule)

    assert re.search(rf"\*\*params_of\(\w+\.{JOBS[rule].__name__}\b", sections["params"])
    assert f"scripts/{rule}.py" in sections["script"]


@pytest.mark.parametrize(
    "rule", [rule for rule, job_class in JOBS.items() if issubclass(job_class, OnModel)]
)
def test_a_rule_on_a_model_takes_its_resources_from_the_class_of_its_job(rule: str) -> None:
    resources = read_sections(rule)["resources"]

    assert re.search(rf"\*\*resources_of\(\w+\.{JOBS[rule].__name__}\b", resources)


@pytest.mark.parametrize("rule", JOBS)
def test_a_script_reads_its_job_and_no_command_line(rule: str) -> None:
    text = (SCRIPTS / f"{rule}.py").read_text(encoding="utf-8")

    nodes = ast.walk(ast.parse(text))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert f"{JOBS[rule].__name__}.read(snakemake)" in text
    assert "with run_script(snakemake):" in text
    assert not {"argv", "add_argument"} & attributes


HIDDEN_SIZE = 4096
BYTES_OF_A_MAP = 8 * HIDDEN_SIZE**2  # in float64
MEGABYTES_OF_A_PASS = 35_000  # the weights and one batch
BYTES_OF_A_BATCH = 2 * 1024**3
MANIFEST = {
    "dtype": "bfloat16",
    "parameters": 8_000_000_000,
    "weights_bytes": 16_000_000_000,
    "hidden_size": HIDDEN_SIZE,
}


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_later_attempt_asks_for_more_memory(attempt: int) -> None:
    sweep = make_sweep(loop=None)

    assert sweep.memory(MANIFEST, attempt) == attempt * MEGABYTES_OF_A_PASS


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_sweep_with_a_repair_asks_for_the_memory_of_its_fit(attempt: int) -> None:
    """The sums of eight runs and their fit, beyond what a batch may take, and 1 GB of patches."""
    fit_bytes = (8 * 4 + 6) * BYTES_OF_A_MAP - BYTES_OF_A_BATCH + 1024**3

    memory = make_sweep().memory(MANIFEST, attempt)

    assert memory == attempt * MEGABYTES_OF_A_PASS + round(attempt * fit_bytes / 1e6)


@pytest.mark.parametrize(("attempt", "minutes"), [(1, 116), (3, 348)])
def test_a_later_attempt_asks_for_more_time(attempt: int, minutes: int) -> None:
    manifest = {name: value for name, value in MANIFEST.items() if name != "hidden_size"}

    assert make_sweep().minutes(manifest, attempt) == minutes


@pytest.mark.parametrize(("weights", "attempt", "n_maps"), [([("c", 1.0)], 1, 3), ([], 2, 15)])
def test_a_fit_holds_its_maps_and_those_of_all_weights_that_are_tried(
    weights: list[tuple[str, float]], attempt: int, n_maps: int
) -> None:
    """Maps of three runs in float32: with and without the held-out samples, and what is written.

    The sums of three runs and their fit exceed what a batch may take.
    """
    job = FitPatch(sizes=[1, 2], name="g", own="c", seed=0, repair=GHOST, weights=weights)
    sums_bytes = (3 * 4 + 6) * BYTES_OF_A_MAP - BYTES_OF_A_BATCH
    maps_bytes = n_maps * 3 * BYTES_OF_A_MAP // 2

    memory = job.memory(MANIFEST, attempt)

    fit_megabytes = round(attempt * (sums_bytes + maps_bytes) / 1e6)
    assert memory == attempt * MEGABYTES_OF_A_PASS + fit_megabytes


def test_a_script_ends_with_the_file_that_is_missing(tmp_path: Path) -> None:
    process = run_in_subprocess(PickPlan(removed=1, plans=str(tmp_path / "none.json")), tmp_path)

    assert process.returncode == 1
    assert "none.json" in process.stderr


def test_an_unknown_option_of_an_entry_is_refused_as_in_a_configuration() -> None:
    options = make_sweep().options()
    options["loop"]["repair"] = {"method": "ghost", "rnak": 8}

    with pytest.raises(LaminaError, match="rnak.*Did you mean 'rank'"):
        read_back(make_sweep(), options=options)

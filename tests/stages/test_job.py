"""One object is all that a job knows: it goes through JSON unchanged, and its script reads nothing else."""

import ast
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lamina.stages.capture_activations import CaptureActivations
from lamina.stages.fit_patch import FitPatch
from lamina.stages.sweep_units import SweepUnits

from lamina import modules
from lamina import stages as jobs
from lamina.config import repairs
from lamina.errors import LaminaError
from lamina.models.manifest import weights_gb
from lamina.repair.methods import ghost
from lamina.selection.options import Loop
from lamina.stages import described as describing
from lamina.stages.job import Job, Part
from lamina.study.load import load
from tests.given.configurations import minimal, workplace
from tests.given.scripts import ROOT, place, started

HELPERS = {"changes", "described", "files", "job", "measuring"}
RULES = [name for _, name, _ in pkgutil.iter_modules(jobs.__path__) if name not in HELPERS]
# On demand only, with files that nothing of a study reads.
TRAINING = {"train_reference", "train_sibling"}


def kinds(base: type[Any] = Job) -> list[type[Any]]:
    """The classes of all jobs, and of groups of their options."""
    for name in RULES:
        importlib.import_module(f"lamina.stages.{name}")
    return [each for kind in base.__subclasses__() for each in (kind, *kinds(kind))]


def a_sweep(**more: Any) -> SweepUnits:
    loop = Loop(
        repair=repairs.Repair.from_options({"method": "ghost", "rank": 8}),
        weights=[("c", 1.0)],
        protect=[0],
        seed=3,
    )
    told = {"manifest": "m.json", "calibration": "c.parquet", "pass_": "removal", "units": "layer", "loop": loop}
    told |= {"block": 1, "blocks": 2, "tokens": 64, "keys": {"calibration": "c"}, "output": "it's {a} $b.parquet"}
    return SweepUnits(**told | more)


@pytest.fixture(autouse=True)
def nothing_declared() -> Any:
    yield
    modules._declared = None


def read_back(kind: type[Job], text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return kind.read([])


def test_a_job_goes_through_a_shell_and_json_with_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_sweep()
    command = f"cat <<< {shlex.quote(job.told())}"
    text = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    again = read_back(SweepUnits, text, monkeypatch)
    assert again.model_dump() == job.model_dump()
    assert isinstance(again.loop.repair, ghost.Ghost) and again.loop.repair.rank == 8
    assert len(json.loads(text)["code"]) == 64 and json.loads(text)["job"]["loop"]["repair"]["rank"] == 8


def test_a_job_is_read_from_a_file_or_refused_where_none_is_given(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(a_sweep().told())
    assert SweepUnits.read([str(tmp_path / "job.json")]).model_dump() == a_sweep().model_dump()
    command = [sys.executable, str(ROOT / "workflow/scripts/pick_plan.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, input="", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pick_plan: no job is given" in done.stderr


def test_what_is_not_asked_for_is_not_told_so_that_a_new_option_changes_no_job() -> None:
    class Grown(SweepUnits):
        added: str | None = None

    Grown.__module__ = SweepUnits.__module__
    told = a_sweep()
    assert Grown(**{name: getattr(told, name) for name in SweepUnits.model_fields}).told() == told.told()
    assert not {"plan", "budget", "donors", "data"} & json.loads(told.told())["job"].keys()
    # Other tests list the jobs that there are.
    del Grown
    gc.collect()
    assert not SweepUnits.__subclasses__()


@pytest.mark.parametrize("kind", [*kinds(Job), *kinds(Part)], ids=lambda kind: kind.__name__)
def test_no_number_hides_in_a_default(kind: type[Any]) -> None:
    """What a job leaves out it has not asked for; a number there would change what is measured and no param."""
    for name, field in kind.model_fields.items():
        assert field.is_required() or field.get_default() in (None, False, [], {}), f"{kind.__name__}.{name}"


def test_a_job_is_frozen_and_knows_no_other_option() -> None:
    with pytest.raises(ValueError, match="frozen"):
        a_sweep().tokens = 5  # type: ignore[misc]
    with pytest.raises(ValueError, match="made_up"):
        a_sweep(made_up=1)


def test_where_a_job_writes_and_which_block_it_is_say_nothing_of_its_origin() -> None:
    one, other = a_sweep(), a_sweep(block=0, output="elsewhere.parquet", follows={"family": "x"})
    assert one.provenance == other.provenance != a_sweep(tokens=128).provenance
    fit = {"manifest": "m", "calibration": "c", "plans": [], "sizes": [], "name": "g", "own": "c", "seed": 5}
    ghost = repairs.Repair.from_options({"method": "ghost"})
    assert FitPatch(**fit, repair=ghost, output="o", table="t").provenance["seed"] == "5"


def test_a_job_loads_what_it_declares_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert modules.load("lamina.selection.race").__name__ == "lamina.selection.race"
    read_back(SweepUnits, a_sweep().told(), monkeypatch)
    assert modules.load("lamina.repair.methods.ghost").__name__ == "lamina.repair.methods.ghost"
    with pytest.raises(ModuleNotFoundError, match="lamina.selection.race and does not name it"):
        modules.load("lamina.selection.race")


def test_modules_are_loaded_by_name_in_one_place() -> None:
    """Elsewhere a name could be loaded that no digest covers. Tables are loaded all together, with what writes them,
    and options of methods with the configuration, whose values a job is told."""
    known = {"modules.py", "config/entry.py", "tables/store.py", "__init__.py", "workflow/warm.py", "cost/pace.py"}
    source = ROOT / "src/lamina"
    files = [*source.rglob("*.py"), *(ROOT / "workflow/scripts").glob("*.py")]
    found = {file for file in files if re.search(r"import_module|__import__", file.read_text(encoding="utf-8"))}
    assert {str(file.relative_to(source)) if source in file.parents else file.name for file in found} == known


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_a_job_and_a_script_have_one_name(rule: str) -> None:
    found = [kind for kind in kinds() if kind.__module__ == f"lamina.stages.{rule}"]
    assert [kind.__name__ for kind in found] == [rule.title().replace("_", "")]
    assert (ROOT / f"workflow/scripts/{rule}.py").is_file()
    written = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "rules").glob("*.smk"))
    assert re.search(rf"^rule {rule}:", written, re.MULTILINE) and f"{found[0].__name__}, CONFIG" in re.sub(
        r"\s+", " ", written
    ).replace("( ", "(")


def test_every_script_reads_a_job_and_no_command_line() -> None:
    scripts = {file.stem: file for file in (ROOT / "workflow/scripts").glob("*.py")}
    assert scripts.keys() == {*RULES, *TRAINING}
    for name in RULES:
        tree = ast.parse(scripts[name].read_text(encoding="utf-8"))
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert "read" in called and not {"argv", "add_argument"} & called, name


def test_one_object_serves_all_that_a_rule_asks_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, made = load(minimal(), workplace(tmp_path)), []

    class Counted(CaptureActivations):
        @classmethod
        def of(cls, config: Any, w: Any) -> Any:
            made.append(w)
            return super().of(config, w)

    Counted.__module__ = CaptureActivations.__module__
    asked, w = describing.described(Counted, config, fact="told"), place(model="small", calibration="recall")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        asked.memory(w, None, 1)  # the model is not prepared; Snakemake asks again
    facts = {"dtype": "float32", "parameters": 1_000_000_000, "weights_bytes": 1}
    Path(asked.inputs(w)["manifest"]).parent.mkdir(parents=True)
    Path(asked.inputs(w)["manifest"]).write_text(json.dumps(facts))
    assert (asked.memory(w, None, 1), asked.minutes(w, None, 2)) == (11_000, 2 * (20 + 24))
    assert asked.told(w) == asked.of(w).told() and made == [w | {"fact": "told"}]


@pytest.mark.parametrize(("dtype", "gb"), [("float32", 32.0), ("bfloat16", 16.0), ("float16", 16.0), ("auto", 7.0)])
def test_weights_count_in_the_type_they_are_loaded_with(dtype: str, gb: float) -> None:
    assert weights_gb({"dtype": dtype, "parameters": 8_000_000_000, "weights_bytes": 7_000_000_000}) == gb


def manifest(folder: Path, **facts: Any) -> str:
    path = folder / "manifest.json"
    path.write_text(json.dumps({"dtype": "bfloat16", "parameters": 8_000_000_000, "weights_bytes": 1, **facts}))
    return str(path)


def test_a_later_attempt_asks_for_more(tmp_path: Path) -> None:
    job = a_sweep(manifest=manifest(tmp_path))
    assert [job.memory(attempt) for attempt in (1, 2)] == [35_000, 70_000]
    assert [job.minutes(attempt) for attempt in (1, 3)] == [116, 348]


def test_a_fit_holds_its_maps_and_those_of_all_weights_that_are_tried(tmp_path: Path) -> None:
    """C² float32 numbers each, with and without the held-out samples: at C = 4096 67 MB."""
    told: dict[str, Any] = {"manifest": manifest(tmp_path, hidden_size=4096), "calibration": "c", "plans": ["p", "q"]}
    told |= {"sizes": [1, 2], "name": "g", "own": "c", "seed": 0, "output": "o", "table": "t"}
    told["repair"] = repairs.Repair.from_options({"method": "ghost"})
    assert FitPatch(**told, weights=[("c", 1.0)]).memory(1) == 35_000 + round(2 * 3 * 4096**2 * 4 / 1e6)
    assert FitPatch(**told).memory(2) == 2 * 35_000 + round(2 * 14 * 3 * 4096**2 * 4 / 1e6)


def test_a_script_says_what_is_wrong_with_a_word(tmp_path: Path) -> None:
    done = started(a_sweep(manifest=str(tmp_path / "none.json")), tmp_path)
    assert done.returncode == 1 and "none.json" in done.stderr


def test_an_unknown_option_of_an_entry_is_refused_as_in_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    text = a_sweep().told().replace('"rank"', '"rnak"')
    with pytest.raises(LaminaError, match="rnak.*Did you mean 'rank'"):
        read_back(SweepUnits, text, monkeypatch)

"""A digest of code changes with what runs, and with nothing else."""

import ast
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lamina_workflow.runtime import fingerprint
from lamina_workflow.runtime.fingerprint import code_digest, entry_digest, package_digest
from tests import ROOT

SOURCE = ROOT / "src"

ENGINE = """
from lamina.parts import wheel
import os

def run(x):
    return wheel.turn(x)
"""
LAZY = """
def run(x):
    from lamina.parts.bolt import fix
    return fix(x)
"""
WHEEL = """
from lamina.parts.bolt import fix

def turn(x):
    return fix(x) + 1
"""
BOLT = '''"""A bolt."""


def fix(x, y=2):
    """Fix it."""
    return x * y  # twice
'''
MODULES = {
    "lamina/__init__.py": '"""A package."""\n',
    "lamina/engine.py": ENGINE,
    "lamina/lazy.py": LAZY,
    "lamina/relative.py": "from .parts import wheel as w\nfrom . import alone\n",
    "lamina/dotted.py": "import lamina.parts.bolt\n",
    "lamina/alone.py": '"""Nothing else."""\n\nX = 1\n',
    "lamina/parts/__init__.py": '"""Parts."""\n',
    "lamina/parts/wheel.py": WHEEL,
    "lamina/parts/bolt.py": BOLT,
}


def write_modules(source: Path, modules: dict[str, str]) -> None:
    for name, text in modules.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A package of a few modules."""
    source = tmp_path / "original" / "src"
    write_modules(source, MODULES)
    return source


def copy_source(source: Path) -> Path:
    """A copy in a new folder: digests are cached by folder."""
    copies = source.parents[1]
    n_copies = len(list(copies.iterdir()))
    copy = copies / f"copy{n_copies}"
    shutil.copytree(source.parent, copy)
    return copy / "src"


def copy_with_edit(source: Path, name: str, old_text: str, new_text: str) -> Path:
    copy = copy_source(source)
    text = (copy / name).read_text()
    assert old_text in text
    (copy / name).write_text(text.replace(old_text, new_text))
    return copy


@pytest.mark.parametrize(
    ("old_text", "new_text"),
    [
        ("  # twice", ""),
        ("x * y", "(x\n        *   y)"),
        ('"""Fix it."""', '"""Fix it at once, and say so."""'),
        ('    """Fix it."""\n', ""),
        ('"""A bolt."""\n', ""),
        ("\n\n\ndef", "\ndef"),
        ("\n\n\ndef", '\n"""Of the line above."""\n\n\ndef'),
    ],
    ids=[
        "comment",
        "format",
        "docstring",
        "no docstring",
        "no module docstring",
        "blank lines",
        "docstring of an attribute",
    ],
)
def test_what_does_not_run_does_not_count(source: Path, old_text: str, new_text: str) -> None:
    copy = copy_with_edit(source, "lamina/parts/bolt.py", old_text, new_text)
    digest = code_digest("lamina.parts.bolt", root=source)
    assert code_digest("lamina.parts.bolt", root=copy) == digest


@pytest.mark.parametrize(
    ("old_text", "new_text"),
    [
        ("x * y", "x / y"),
        ("y=2", "y=3"),
        ("y=2", "y=2.0"),
        ("y=2", "y: int = 2"),
        ("def fix", "@cache\ndef fix"),
    ],
)
@pytest.mark.parametrize(
    "module",
    ["lamina.parts.bolt", "lamina.engine", "lamina.lazy", "lamina.relative", "lamina.dotted"],
)
def test_an_edit_changes_the_digest_of_all_that_reach_it(
    source: Path, module: str, old_text: str, new_text: str
) -> None:
    copy = copy_with_edit(source, "lamina/parts/bolt.py", old_text, new_text)
    assert code_digest(module, root=copy) != code_digest(module, root=source)


def test_an_edit_changes_no_digest_of_what_does_not_reach_it(source: Path) -> None:
    copy = copy_with_edit(source, "lamina/alone.py", "1", "2")
    engine_digest = code_digest("lamina.engine", root=source)
    assert code_digest("lamina.engine", root=copy) == engine_digest
    relative_digest = code_digest("lamina.relative", root=source)
    assert code_digest("lamina.relative", root=copy) != relative_digest


def test_the_digest_of_a_script_is_that_of_what_it_imports(source: Path) -> None:
    script = source.parent / "workflow/scripts/go.py"
    script.parent.mkdir(parents=True)
    script.write_text("from lamina.engine import run\n\nrun(1)\n")
    copy = copy_with_edit(source, "lamina/parts/bolt.py", "x * y", "x / y")
    assert code_digest("go", root=source) != code_digest("go", root=copy)


@pytest.mark.parametrize("name", ["lamina.wheels", "lamina.parts.nut", "none"])
def test_a_module_that_does_not_exist_is_named(source: Path, name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name.replace(".", r"\.")):
        code_digest(name, root=source)


PRINT_DIGEST = """
import sys
from lamina_workflow.runtime.fingerprint import code_digest
print(code_digest(*sys.argv[1:]))
"""


def test_every_process_computes_the_same_digest() -> None:
    modules = ["lamina_workflow.study.requests", "lamina_workflow.runtime.fingerprint"]
    printed = subprocess.check_output(
        [sys.executable, "-c", PRINT_DIGEST, *modules],
        env={"PYTHONHASHSEED": "1"},
        cwd=SOURCE,
        text=True,
    )
    assert printed.strip() == code_digest(*modules)


MEASURE = """
import json
import torch
from lamina import errors
from lamina.options.metrics import METRICS
from lamina.models import families
from lamina.store.parquet import write
from lamina.tokens import cut
"""
TOKENS = """
def cut():
    from transformers import AutoTokenizer
    return AutoTokenizer, 1
"""
# A module that measures, and modules that all others import too.
MEASURING_MODULES = {
    "lamina/errors.py": "class Error(Exception): pass\n",
    "lamina/tables/__init__.py": "",
    "lamina/store/parquet.py": "import pyarrow\n\ndef write(): pass\n",
    "lamina/models/__init__.py": "",
    "lamina/models/families.py": "FAMILIES = {}\n",
    "lamina_workflow/config/__init__.py": "",
    "lamina/options/metrics.py": "import pydantic\n\nMETRICS = {}\n",
    "lamina/measure.py": MEASURE,
    "lamina/tokens.py": TOKENS,
}
LOCK = "torch==2.0\ntransformers==5.0\ntokenizers==0.2\npyarrow==20\npydantic==2.0\nruff==1.0\n"


@pytest.fixture
def measuring_source(source: Path) -> Path:
    """The package with a module that measures, and a file with the versions of packages."""
    write_modules(source, MEASURING_MODULES)
    (source.parent / "requirements.lock").write_text(LOCK)
    return source


@pytest.mark.parametrize("name", ["errors", "store/parquet", "models/families", "options/metrics"])
def test_what_all_modules_import_does_not_count(measuring_source: Path, name: str) -> None:
    copy = copy_with_edit(measuring_source, f"lamina/{name}.py", "\n", "\nX = 1\n")
    digest = code_digest("lamina.measure", root=measuring_source)
    assert code_digest("lamina.measure", root=copy) == digest


def test_what_all_modules_import_counts_where_a_rule_names_it(measuring_source: Path) -> None:
    copy = copy_with_edit(measuring_source, "lamina/store/parquet.py", "pass", "return 1")
    modules = ("lamina.measure", "lamina.store.parquet")
    assert code_digest(*modules, root=copy) != code_digest(*modules, root=measuring_source)


@pytest.mark.parametrize(
    ("package", "counts"),
    [
        ("torch", True),
        ("transformers", True),
        ("tokenizers", True),  # which comes with transformers
        ("ruff", False),
        ("pyarrow", False),
        ("pydantic", False),
    ],
)
def test_versions_of_packages_that_compute_count(
    measuring_source: Path, package: str, counts: bool
) -> None:
    copy = copy_source(measuring_source)
    new_lock = LOCK.replace(f"{package}==", f"{package}==1")
    (copy.parent / "requirements.lock").write_text(new_lock)
    digest = package_digest("lamina.measure", root=measuring_source)
    assert (package_digest("lamina.measure", root=copy) != digest) is counts


def test_every_package_that_the_library_imports_is_pinned() -> None:
    """The version of another one would change and nothing would be stale."""
    scripts = [path.stem for path in (ROOT / "workflow/scripts").glob("*.py")]
    modules = []
    for path in SOURCE.glob("lamina*/**/*.py"):
        if path.name != "__init__.py":
            modules.append(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    pinned_packages = set()
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if "==" in line:
            pinned_packages.add(line.split("==")[0].lower().replace("_", "-"))

    imported_packages = fingerprint.imported_packages(*modules, *scripts)

    assert "torch" in imported_packages
    of_tools = {"microworld"}  # by which the embedded model was trained
    assert imported_packages - of_tools - pinned_packages == set()


@dataclass(frozen=True)
class Entry:
    """An entry of a registry."""

    name: str
    path: str = "model.layers"
    help: str = ""


@dataclass(frozen=True)
class ExtendedEntry(Entry):
    """The same after it got a field."""

    added: bool = False


def test_the_digest_of_an_entry_changes_with_its_values() -> None:
    entries = (None, Entry("a"), Entry("b"), Entry("a", "other"), ExtendedEntry("a", added=True))
    assert len({entry_digest(entry) for entry in entries}) == 5


def test_the_digest_of_an_entry_stays_with_a_new_field_or_another_help() -> None:
    digest = entry_digest(Entry("a"))
    assert entry_digest(ExtendedEntry("a")) == digest
    assert entry_digest(Entry("a", help="Words.")) == digest


METRIC = """
class Own(Metric):
    help = "HELP"

    def terms(self):
        return 1
"""


@pytest.mark.parametrize(("module", "counts"), [("relevance.metrics.lead", False), ("alone", True)])
def test_the_attributes_of_a_metric_count_only_outside_of_the_metrics(
    source: Path, module: str, counts: bool
) -> None:
    """The digest of its entry has them already."""
    file = f"lamina/{module.replace('.', '/')}.py"
    first_source = copy_source(source)
    write_modules(first_source, {file: METRIC.replace("HELP", "one")})
    second_source = copy_source(source)
    write_modules(second_source, {file: METRIC.replace("HELP", "two")})

    first_digest = code_digest(f"lamina.{module}", root=first_source)
    second_digest = code_digest(f"lamina.{module}", root=second_source)
    assert (first_digest != second_digest) is counts


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the library and its scripts."""
    folder = tmp_path_factory.mktemp("library") / "original"
    ignore_caches = shutil.ignore_patterns("__pycache__")
    for name in ("src/lamina", "src/lamina_workflow", "workflow/scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore_caches)
    return folder / "src"


ESTIMATE = ("estimate_cost",)
COST_FIGURE = ("plot_figure", "lamina_workflow.report.figures.cost_of_metrics")
SEARCH = ("search_plans", "lamina.selection.strategies.pairwise")
SWEEP = ("sweep_units",)
FIT = ("fit_patch", "lamina.repairs.methods.ghost")


@pytest.mark.parametrize(
    ("file", "modules", "counts"),
    [
        # What `make plan` prints, and what the figure of costs draws.
        ("lamina_workflow/cost/estimate.py", ESTIMATE, True),
        ("lamina_workflow/cost/work.py", ESTIMATE, True),
        (
            "lamina_workflow/study/requests.py",
            (*ESTIMATE, "lamina_workflow.study.requests"),
            True,
        ),
        ("lamina_workflow/cost/work.py", COST_FIGURE, True),
        ("lamina_workflow/cost/estimate.py", COST_FIGURE, False),
        ("lamina/models/surgery.py", COST_FIGURE, False),
        # Which sets a search tries.
        ("lamina/selection/strategies/pairwise.py", SEARCH, True),
        # What only describes or refuses jobs is no part of what they compute.
        ("lamina_workflow/stages/sweep.py", SWEEP, False),
        ("lamina_workflow/checks/load.py", SWEEP, False),
        ("lamina/options/metrics.py", SWEEP, False),
        ("lamina_workflow/cost/work.py", FIT, False),
    ],
)
def test_the_digest_of_a_job_follows_the_code_of_its_numbers(
    library: Path, file: str, modules: tuple[str, ...], counts: bool
) -> None:
    copy = copy_source(library)
    with (copy / file).open("a") as edited_file:
        edited_file.write("\nEDITED = True\n")
    digest = code_digest(*modules, root=library)
    assert (code_digest(*modules, root=copy) != digest) is counts


def numbers_in_methods(file: Path) -> list[str]:
    """The numbers in the methods of a file that are no options, but for a few harmless ones."""
    harmless_numbers = {0, 1, 2, -1, 100}
    found_numbers = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name.startswith("_") or "option" in node.name:
            continue
        for statement in node.body:
            constants = [leaf for leaf in ast.walk(statement) if isinstance(leaf, ast.Constant)]
            numbers = {leaf.value for leaf in constants if type(leaf.value) in (int, float)}
            for number in sorted(numbers - harmless_numbers):
                found_numbers.append(f"{file.name}: {node.name}: {number}")
    return found_numbers


def test_no_method_of_the_configuration_computes_with_a_number_of_its_own() -> None:
    """No digest includes it: a factor in one would change results, and no job would be stale."""
    texts = ("explain.py", "yaml_loader.py")
    found_numbers = []
    for folder in (SOURCE / "lamina/options", SOURCE / "lamina_workflow/config"):
        for file in sorted(folder.glob("*.py")):
            if file.name not in texts:
                found_numbers += numbers_in_methods(file)
    assert found_numbers == []


TYPE_IMPORTS = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from lamina.parts import bolt
"""


def test_an_import_for_type_checkers_alone_does_not_count(source: Path) -> None:
    other_imports = TYPE_IMPORTS.replace("import torch", "import numpy")
    copy = copy_with_edit(source, "lamina/alone.py", "X = 1", f"{TYPE_IMPORTS}X = 1")
    other_copy = copy_with_edit(source, "lamina/alone.py", "X = 1", f"{other_imports}X = 1")
    assert fingerprint.imported_packages("lamina.alone", root=copy) == set()
    digest = code_digest("lamina.alone", root=copy)
    assert code_digest("lamina.alone", root=other_copy) == digest

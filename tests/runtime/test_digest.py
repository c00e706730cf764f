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

SOURCE = Path(__file__).resolve().parents[2] / "src"

FILES = {
    "lamina/__init__.py": '"""A package."""\n',
    "lamina/engine.py": "from lamina.parts import wheel\nimport os\n\ndef run(x):\n    return wheel.turn(x)\n",
    "lamina/lazy.py": "def run(x):\n    from lamina.parts.bolt import fix\n    return fix(x)\n",
    "lamina/relative.py": "from .parts import wheel as w\nfrom . import alone\n",
    "lamina/dotted.py": "import lamina.parts.bolt\n",
    "lamina/alone.py": '"""Nothing else."""\n\nX = 1\n',
    "lamina/parts/__init__.py": '"""Parts."""\n',
    "lamina/parts/wheel.py": "from lamina.parts.bolt import fix\n\ndef turn(x):\n    return fix(x) + 1\n",
    "lamina/parts/bolt.py": '"""A bolt."""\n\n\ndef fix(x, y=2):\n    """Fix it."""\n    return x * y  # twice\n',
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of a few modules."""
    root = tmp_path / "original" / "src"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def edited(root: Path, name: str, old: str, new: str) -> Path:
    """A copy of the tree with one edit, elsewhere: digests are cached per process and folder."""
    copy = root.parents[1] / f"copy{len(list(root.parents[1].iterdir()))}" / "src"
    shutil.copytree(root, copy)
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new))
    return copy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # twice", ""),
        ("x * y", "(x\n        *   y)"),
        ('"""Fix it."""', '"""Fix it at once, and say so."""'),
        ('    """Fix it."""\n', ""),
        ('"""A bolt."""\n', ""),
        ("\n\n\ndef", "\ndef"),
    ],
    ids=["comment", "format", "docstring", "no docstring", "no module docstring", "blank lines"],
)
def test_what_does_not_run_does_not_count(tree: Path, old: str, new: str) -> None:
    other = edited(tree, "lamina/parts/bolt.py", old, new)
    assert code_digest("lamina.parts.bolt", root=other) == code_digest(
        "lamina.parts.bolt", root=tree
    )


@pytest.mark.parametrize(
    ("old", "new"),
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
    tree: Path, module: str, old: str, new: str
) -> None:
    other = edited(tree, "lamina/parts/bolt.py", old, new)
    assert code_digest(module, root=other) != code_digest(module, root=tree)


def test_an_edit_elsewhere_changes_nothing(tree: Path) -> None:
    other = edited(tree, "lamina/alone.py", "1", "2")
    assert code_digest("lamina.engine", root=other) == code_digest("lamina.engine", root=tree)
    assert code_digest("lamina.relative", root=other) != code_digest("lamina.relative", root=tree)


def test_a_script_stands_for_what_it_imports(tree: Path) -> None:
    script = tree.parent / "workflow/scripts/go.py"
    script.parent.mkdir(parents=True)
    script.write_text("from lamina.engine import run\n\nrun(1)\n")
    other = edited(tree, "lamina/parts/bolt.py", "x * y", "x / y")
    shutil.copytree(tree.parent / "workflow", other.parent / "workflow")
    assert code_digest("go", root=tree) != code_digest("go", root=other)


@pytest.mark.parametrize("name", ["lamina.wheels", "lamina.parts.nut", "none"])
def test_a_module_that_is_not_there_is_named(tree: Path, name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name.replace(".", r"\.")):
        code_digest(name, root=tree)


def test_every_process_finds_the_same_digest() -> None:
    names = "'lamina_workflow.study.requests', 'lamina_workflow.runtime.fingerprint'"
    code = (
        f"from lamina_workflow.runtime.fingerprint import code_digest; print(code_digest({names}))"
    )
    told = {"env": {"PYTHONHASHSEED": "1"}, "cwd": SOURCE, "text": True}
    printed = subprocess.check_output([sys.executable, "-c", code], **told).strip()
    assert printed == code_digest(
        "lamina_workflow.study.requests", "lamina_workflow.runtime.fingerprint"
    )


ASIDE = {
    "lamina/errors.py": "class Error(Exception): pass\n",
    "lamina/tables/__init__.py": "",
    "lamina/store/parquet.py": "import pyarrow\n\ndef write(): pass\n",
    "lamina/models/__init__.py": "",
    "lamina/models/families.py": "FAMILIES = {}\n",
    "lamina_workflow/config/__init__.py": "",
    "lamina/options/metrics.py": "import pydantic\n\nMETRICS = {}\n",
    "lamina/measure.py": (
        "import json\nimport torch\nfrom lamina import errors\nfrom lamina.options.metrics import METRICS\n"
        "from lamina.models import families\nfrom lamina.store.parquet import write\nfrom lamina.tokens import cut\n"
    ),
    "lamina/tokens.py": "def cut():\n    from transformers import AutoTokenizer\n    return AutoTokenizer, 1\n",
}
LOCK = "torch==2.0\ntransformers==5.0\ntokenizers==0.2\npyarrow==20\npydantic==2.0\nruff==1.0\n"


@pytest.fixture
def project(tree: Path) -> Path:
    """A measuring module that imports what everything imports, and the versions of packages."""
    for name, text in ASIDE.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tree.parent / "requirements.lock").write_text(LOCK)
    return tree


@pytest.mark.parametrize("name", ["errors", "store/parquet", "models/families", "options/metrics"])
def test_what_everything_imports_stands_aside(project: Path, name: str) -> None:
    other = edited(project, f"lamina/{name}.py", "\n", "\nX = 1\n")
    assert code_digest("lamina.measure", root=other) == code_digest("lamina.measure", root=project)


def test_what_stands_aside_counts_where_a_rule_names_it(project: Path) -> None:
    other = edited(project, "lamina/store/parquet.py", "pass", "return 1")
    modules = ("lamina.measure", "lamina.store.parquet")
    assert code_digest(*modules, root=other) != code_digest(*modules, root=project)


@pytest.mark.parametrize(
    "package", ["torch", "transformers", "tokenizers", "ruff", "pyarrow", "pydantic"]
)
def test_versions_count_of_packages_that_are_reached(project: Path, package: str) -> None:
    other = edited(project, "lamina/alone.py", "1", "2")
    (other.parent / "requirements.lock").write_text(LOCK.replace(f"{package}==", f"{package}==1"))
    changed = package_digest("lamina.measure", root=other) != package_digest(
        "lamina.measure", root=project
    )
    assert changed is (package in ("torch", "transformers", "tokenizers"))


def test_every_package_that_the_library_imports_is_pinned() -> None:
    """One that is not would change without a word."""
    roots = [*SOURCE.glob("lamina*/**/*.py"), *(SOURCE.parent / "workflow/scripts").glob("*.py")]
    names = [
        path.stem
        if path.parent.name == "scripts"
        else ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in roots
        if path.name != "__init__.py"
    ]
    imported = {
        package
        for module in fingerprint._reach(tuple(names), SOURCE).values()
        for package in module.packages
    }
    pins = fingerprint._locked_versions(SOURCE.parent / "requirements.lock")
    assert "torch" in imported
    imported -= {"microworld"}  # of tools/, by which the embedded model was made
    assert [
        p
        for p in sorted(imported)
        if fingerprint._INSTALLED_AS.get(p, fingerprint._normalise(p)) not in pins
    ] == []
    brought = {name for names in fingerprint._BRINGS.values() for name in names}
    assert brought | fingerprint._BRINGS.keys() <= pins.keys()


@dataclass(frozen=True)
class Entry:
    """Of a registry, as it is."""

    name: str
    path: str = "model.layers"
    help: str = ""


@dataclass(frozen=True)
class Grown(Entry):
    """The same after somebody gave it a field."""

    added: bool = False


def test_an_entry_changes_with_its_values_and_not_with_new_fields_or_its_help() -> None:
    assert (
        entry_digest(Entry("a"))
        == entry_digest(Grown("a"))
        == entry_digest(Entry("a", help="Words."))
    )
    entries = (None, Entry("a"), Entry("b"), Entry("a", "other"), Grown("a", added=True))
    assert len(set(map(entry_digest, entries))) == 5


@pytest.mark.parametrize(("module", "counts"), [("relevance/metrics/lead", False), ("alone", True)])
def test_the_entry_of_a_metric_counts_by_its_digest_alone(
    tree: Path, module: str, counts: bool
) -> None:
    roots = []
    for entry in ("one", "two"):
        root = edited(tree, "lamina/dotted.py", "import", "import")
        (root / f"lamina/{module}.py").parent.mkdir(exist_ok=True, parents=True)
        (root / f"lamina/{module}.py").write_text(
            f'class Own(Metric):\n    help = "{entry}"\n\n    def terms(self):\n        return 1\n'
        )
        roots.append(root)
    one, two = (code_digest(f"lamina.{module.replace('/', '.')}", root=root) for root in roots)
    assert (one != two) is counts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the library and its scripts."""
    folder = tmp_path_factory.mktemp("whole") / "original"
    for part in ("src/lamina", "src/lamina_workflow", "workflow/scripts"):
        shutil.copytree(
            SOURCE.parent / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder / "src"


@pytest.mark.parametrize(
    ("file", "modules", "changed"),
    [
        # What `make plan` prints, and what the figure of costs draws.
        *(
            (f"lamina_workflow/cost/{name}.py", ("estimate_cost",), True)
            for name in ("estimate", "work")
        ),
        (
            "lamina_workflow/cost/estimate.py",
            ("plot_figure", "lamina_workflow.report.figures.cost_of_metrics"),
            False,
        ),
        (
            "lamina/models/surgery.py",
            ("plot_figure", "lamina_workflow.report.figures.cost_of_metrics"),
            False,
        ),
        (
            "lamina_workflow/study/requests.py",
            ("estimate_cost", "lamina_workflow.study.requests"),
            True,
        ),
        (
            "lamina_workflow/cost/work.py",
            ("plot_figure", "lamina_workflow.report.figures.cost_of_metrics"),
            True,
        ),
        # How long an evolution goes on.
        (
            "lamina/selection/strategies/evolutionary.py",
            ("search_plans", "lamina.selection.strategies.evolutionary"),
            True,
        ),
        # What only describes jobs, or refuses them, is no part of what they compute.
        ("lamina_workflow/stages/sweep.py", ("sweep_units",), False),
        ("lamina_workflow/checks/load.py", ("sweep_units",), False),
        ("lamina/options/metrics.py", ("sweep_units",), False),
        ("lamina_workflow/cost/work.py", ("fit_patch", "lamina.repair.methods.ghost"), False),
    ],
)
def test_a_written_number_follows_its_code(
    whole: Path, file: str, modules: tuple[str, ...], changed: bool
) -> None:
    copy = whole.parents[1] / f"copy{len(list(whole.parents[1].iterdir()))}" / "src"
    shutil.copytree(whole.parent, copy.parent)
    with (copy / file).open("a") as end:
        end.write("\nEDITED = True\n")
    assert (code_digest(*modules, root=copy) != code_digest(*modules, root=whole)) is changed


def test_the_configuration_computes_nothing_with_a_number_of_its_own() -> None:
    """It stands aside of all digests: a factor in a method of a class there would change results, and no job."""
    found = []
    folders = (SOURCE / "lamina/options", SOURCE / "lamina_workflow/config")
    for file in sorted(path for folder in folders for path in folder.glob("*.py")):
        if file.name in ("explain.py", "yaml_loader.py"):
            continue  # texts
        for method in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(method, ast.FunctionDef)
                and not method.name.startswith("_")
                and "option" not in method.name
            ):
                body = [node for statement in method.body for node in ast.walk(statement)]
                values = [node.value for node in body if isinstance(node, ast.Constant)]
                numbers = {value for value in values if type(value) in (int, float)}
                found += [
                    f"{file.name}: {method.name}: {number}"
                    for number in sorted(numbers - {0, 1, 2, -1, 100})
                ]
    assert found == []


def test_an_import_for_type_checkers_alone_is_none(tree: Path) -> None:
    typed = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import torch\n    from lamina.parts import bolt\n\n"
    one = edited(tree, "lamina/alone.py", "X = 1", f"{typed}X = 1")
    two = edited(
        tree, "lamina/alone.py", "X = 1", f"{typed.replace('import torch', 'import numpy')}X = 1"
    )
    assert fingerprint.imported_packages("lamina.alone", root=one) == set()
    assert code_digest("lamina.alone", root=one) == code_digest("lamina.alone", root=two)

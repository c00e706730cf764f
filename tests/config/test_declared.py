"""What modules declare is read without importing them."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from lamina.options.metrics import METRICS
from lamina.registry import declared_literals
from lamina.relevance import protocol
from lamina.tables import TABLES

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_every_form_of_a_literal_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "some/package"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text('import not_there\n\nTABLES = ("a", "b")\n')
    (folder / "two.py").write_text('TABLES: tuple[str, ...] = ("c",)\nOTHER = 1\n')
    (folder / "three.py").write_text('TABLES = (\n    "long "\n    "text"\n)\n')
    (folder / "none.py").write_text("def f():\n    TABLES = ()\n")
    assert declared_literals("some.package", "TABLES", tmp_path) == {
        "one": ("a", "b"),
        "two": ("c",),
        "three": "long text",
    }


def test_figures_read_tables_that_there_are() -> None:
    figures = declared_literals("lamina_workflow.report.figures", "TABLES")
    assert figures and {table for read in figures.values() for table in read} <= TABLES.keys()


def test_every_metric_declares_its_entry() -> None:
    for name, entry in METRICS.items():
        own = protocol.metric_named(name)
        for field in fields(entry):
            assert field.name == "module" or getattr(own, field.name) == getattr(entry, field.name)
    assert {"accuracy", "output_kl", "random"} <= METRICS.keys()
    assert len(METRICS) == len(protocol.Metric.__subclasses__())
    assert METRICS["cosine"].runs and not METRICS["accuracy"].runs


def test_what_rules_import_is_light() -> None:
    """A dry run and every job of a cluster read the Snakefile: neither torch nor pyarrow belongs there."""
    rules = "".join(file.read_text() for file in (SOURCE.parent / "rules").glob("*.smk"))
    imports = re.findall(r"^from lamina.*", rules, re.MULTILINE)
    assert len(imports) > 20
    code = "; ".join(["import sys", *imports, "print(*sys.modules)"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True, check=True
    )
    heavy = {
        "torch",
        "transformers",
        "numpy",
        "pandas",
        "pyarrow",
        "matplotlib",
        "lm_eval",
        "lamina.relevance",
    }
    assert not heavy & set(done.stdout.split())

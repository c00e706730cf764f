"""What modules declare is read without importing them: against the modules when imported."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lamina import registry
from lamina.options.metrics import METRICS
from lamina.registry import declared_literals
from lamina.relevance import protocol
from lamina.tables import TABLES
from tests import ROOT


def test_every_form_of_a_literal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SOURCE", tmp_path)
    folder = tmp_path / "some/package"
    folder.mkdir(parents=True)
    (folder / "plain.py").write_text('import not_there\n\nTABLES = ("a", "b")\n')
    (folder / "annotated.py").write_text('TABLES: tuple[str, ...] = ("c",)\nOTHER = 1\n')
    (folder / "joined.py").write_text('TABLES = (\n    "long "\n    "text"\n)\n')
    (folder / "local.py").write_text("def f():\n    TABLES = ()\n")

    assert declared_literals("some.package", "TABLES") == {
        "plain": ("a", "b"),
        "annotated": ("c",),
        "joined": "long text",
    }


def test_figures_read_tables_that_there_are() -> None:
    tables_by_figure = declared_literals("lamina_workflow.report.figures", "TABLES")

    assert tables_by_figure
    for figure, tables in tables_by_figure.items():
        assert set(tables) <= TABLES.keys(), figure


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_declares_what_its_class_says(name: str) -> None:
    declared = METRICS[name]
    metric = protocol.metric_named(name)

    for field in fields(declared):
        if field.name != "module":
            assert getattr(declared, field.name) == getattr(metric, field.name)


def test_every_metric_is_declared() -> None:
    for name in METRICS:
        protocol.metric_named(name)  # imports its module

    assert len(METRICS) == len(protocol.Metric.__subclasses__())


def test_cosine_compares_runs_of_layers_and_accuracy_does_not() -> None:
    assert METRICS["cosine"].runs
    assert not METRICS["accuracy"].runs


HEAVY_MODULES = {
    "torch",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "lm_eval",
    "lamina.relevance",
}


def test_what_rules_import_is_light() -> None:
    """A dry run and every job of a cluster read the Snakefile."""
    imports: list[str] = []
    for file in (ROOT / "rules").glob("*.smk"):
        imports += re.findall(r"^from lamina.*", file.read_text(), re.MULTILINE)
    code = "\n".join(["import sys", *imports, "print(*sys.modules)"])

    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True
    )

    assert len(imports) > 20
    assert not HEAVY_MODULES & set(process.stdout.split())

"""The figures that there are."""

import importlib

from lamina.registry import declared

POSITIONS = declared("lamina_workflow.report.figures", "POSITION")
FIGURES = {
    name: importlib.import_module(f"lamina_workflow.report.figures.{name}")
    for name in sorted(POSITIONS, key=POSITIONS.__getitem__)
}

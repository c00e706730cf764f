"""The modules of all figures by their names, in the order in which the report shows them."""

import importlib

from lamina.registry import declared_literals

POSITIONS = declared_literals("lamina_workflow.report.figures", "POSITION")
FIGURES = {
    name: importlib.import_module(f"lamina_workflow.report.figures.{name}")
    for name in sorted(POSITIONS, key=POSITIONS.__getitem__)
}

"""The figures that there are."""

import importlib

from lamina.registry import declared

POSITIONS = declared("lamina.report.figures", "POSITION")
FIGURES = {
    name: importlib.import_module(f"lamina.report.figures.{name}")
    for name in sorted(POSITIONS, key=POSITIONS.__getitem__)
}

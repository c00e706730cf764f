"""The figures that there are."""

import importlib

from lamina.registry import declared

PLACES = declared("lamina.report.figures", "PLACE")
FIGURES = {
    name: importlib.import_module(f"lamina.report.figures.{name}")
    for name in sorted(PLACES, key=PLACES.__getitem__)
}

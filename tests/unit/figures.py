"""The figures that there are."""

import importlib

from lamina.declared import declared

PLACES = declared("lamina.figures", "PLACE")
FIGURES = {name: importlib.import_module(f"lamina.figures.{name}") for name in sorted(PLACES, key=PLACES.__getitem__)}

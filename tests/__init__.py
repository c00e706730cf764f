"""Statements about lamina, in folders named like those of the library."""

from pathlib import Path

# Tests work in folders of their own, so files of the repository are reached from here.
ROOT = Path(__file__).resolve().parents[1]

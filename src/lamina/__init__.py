"""lamina: which layers of a language model matter, which can go, and how much of the damage can be repaired."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`lamina.load`, imported on first use: it brings torch and transformers.

    By name and not by an import statement, which the code digest of rules that never load a model would follow.
    """
    if name == "load":
        return import_module("lamina.loading").load
    raise AttributeError(f"module 'lamina' has no attribute '{name}'")

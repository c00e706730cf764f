"""lamina: which layers of a language model matter, which can go, and how much of the damage can be repaired."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`lamina.load`, imported on first use, because it imports torch and transformers.

    The module is imported by its name: the code digest of rules that load no model would follow an import statement.
    """
    if name == "load":
        return import_module("lamina.loading").load
    raise AttributeError(f"module 'lamina' has no attribute '{name}'")

"""lamina: which layers of a language model matter, which can go, and how much of the damage can be repaired."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamina.loading import load
    from lamina.notebook import sweep

__all__ = ["load", "sweep"]


def __getattr__(name: str) -> Any:
    """`load` and `sweep`, imported on first use, because they import torch and transformers.

    The modules are imported by name: the code digest of rules that load no model would follow an import statement.
    """
    if name in __all__:
        return getattr(
            import_module("lamina.loading" if name == "load" else "lamina.notebook"), name
        )
    raise AttributeError(f"module 'lamina' has no attribute '{name}'")

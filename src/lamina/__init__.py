"""lamina: which layers of a language model matter, which can go, and how much of the damage can be repaired.

The functions of a study in a notebook, in order (docs/api.md):

- `open_model`, `prepare`: the model, and the samples for the study,
- `sweep`: which layers matter,
- `select`: what is removed; `repair` and `heal`: reduce the damage,
- `evaluate`: how good the model still is; `export`: a checkpoint,
- `load`: a variant or an export of the workflow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamina.api.inputs import open_model, prepare
    from lamina.api.outcome import evaluate, export
    from lamina.api.selection import select
    from lamina.api.variants import heal, repair
    from lamina.loading import load
    from lamina.notebook import sweep
    from lamina.version import VERSION as __version__

_MODULES = {
    "evaluate": "lamina.api.outcome",
    "export": "lamina.api.outcome",
    "heal": "lamina.api.variants",
    "load": "lamina.loading",
    "open_model": "lamina.api.inputs",
    "prepare": "lamina.api.inputs",
    "repair": "lamina.api.variants",
    "select": "lamina.api.selection",
    "sweep": "lamina.notebook",
}
__all__ = [
    "__version__",
    "evaluate",
    "export",
    "heal",
    "load",
    "open_model",
    "prepare",
    "repair",
    "select",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """The public functions, imported on first use, because they import torch and transformers.

    The modules are imported by name: the code digest of rules that load no model would follow an
    import statement.
    """
    if name == "__version__":
        return import_module("lamina.version").VERSION
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'lamina' has no attribute '{name}'")

"""The one way to load a module by its name, so that what a job loads is what its code digest covers."""

import importlib
from collections.abc import Iterable
from types import ModuleType

loaded: set[str] = set()  # so far, by name

_declared: frozenset[str] | None = None


def declare(names: Iterable[str]) -> None:
    """From here on, this process loads no module by name but these: those that its job is hashed with."""
    global _declared
    _declared = frozenset(names)


def load(name: str) -> ModuleType:
    """The module `name` of lamina. In a notebook or a test, where no job has declared anything, every module loads.

    Raises
    ------
    ModuleNotFoundError
        If this process runs a job that does not name the module: an edit of it would leave the job's results as they
        are.
    """
    if _declared is not None and name not in _declared:
        raise ModuleNotFoundError(
            f"this job loads {name} and does not name it, so that an edit of it would rerun nothing. Add it to "
            "`modules` of the job's class in lamina.jobs."
        )
    loaded.add(name)
    return importlib.import_module(name)

"""The only way to load a module by its name. So the code digest of a job covers every module that the job loads."""

import importlib
from collections.abc import Iterable
from types import ModuleType

_declared: frozenset[str] | None = None


def declare(names: Iterable[str]) -> None:
    """From now on, this process loads only these modules by name: the code digest of its job covers them."""
    global _declared
    _declared = frozenset(names)


def load(name: str) -> ModuleType:
    """The module `name` of lamina. In a notebook or a test, where no job has declared anything, every module loads.

    Raises ModuleNotFoundError if this process runs a job that does not name the module. An edit of the module would not
    rerun the job.
    """
    if _declared is not None and name not in _declared:
        raise ModuleNotFoundError(
            f"this job loads {name} and does not name it, so that an edit of it would rerun nothing. Add it to "
            "`modules` of the job's class in lamina.stages."
        )
    return importlib.import_module(name)

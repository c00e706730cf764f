"""The only way to load a module by its name.

So the code digest of a job covers every module that the job loads.
"""

import importlib
from collections.abc import Iterable
from types import ModuleType

# A process runs one job. Methods are loaded deep inside the library, which knows nothing of jobs,
# so what the job has declared is not an argument. None: no job, every module loads.
_declared: frozenset[str] | None = None


def declare(names: Iterable[str]) -> None:
    """Let this process load only these modules by name: the code digest of its job covers them."""
    global _declared
    _declared = frozenset(names)


def load(name: str) -> ModuleType:
    """The module `name` of lamina. In a notebook or a test, where no job runs, every module loads.

    Raises ModuleNotFoundError if this process runs a job that does not name the module. An edit of
    the module would not rerun the job.
    """
    if _declared is not None and name not in _declared:
        raise ModuleNotFoundError(
            f"this job loads {name}, but the class of the job does not declare it, so an edit of "
            f"{name} would not rerun the job. Add it to the property `modules` of the class, in "
            "lamina.stages."
        )
    return importlib.import_module(name)

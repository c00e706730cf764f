"""What every script of the workflow shares: log, devices, checks of data files, errors.

A script imports this module before any library (ruff keeps it there, see pyproject.toml). If the
job loads a model, the import hands the script over to a fork of a process that already has the
libraries, if there is one: `lamina_workflow.runtime.forkserver`.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from lamina.errors import report_errors
from lamina_workflow.runtime import contents, devices, forkserver

_WORKLOAD = "lamina.models.workload"  # it logs the progress of a job


@contextmanager
def run_script(snakemake: Any) -> Iterator[None]:
    """A context around the work of a script, given the object `snakemake`.

    Output goes to the rule's log. A job that requests GPUs waits for free ones. A data file that
    differs from the one that its rule recorded is refused. A LaminaError becomes its message and
    exit status 1.
    """
    if snakemake.log:
        _redirect_output(Path(snakemake.log[0]))
    n_gpus = snakemake.resources.get("gpu", 0)
    device_lock = devices.acquire_devices(int(n_gpus)) if n_gpus else nullcontext()
    logging.getLogger(_WORKLOAD).setLevel(logging.DEBUG)
    expected_hashes = snakemake.params.get("content") or {}
    with report_errors(), device_lock:
        contents.check_contents(expected_hashes)
        yield
        # Imported by name: the code digest of every job would follow an import statement.
        workload = sys.modules.get(_WORKLOAD)
        if workload is not None:
            workload.done.finish()


def _redirect_output(log: Path) -> None:
    """Send standard output and standard error to a file, including output of C libraries."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _loads_model() -> bool:
    """Whether the running script belongs to a job that requests a GPU, and so loads a model."""
    snakemake = getattr(sys.modules["__main__"], "snakemake", None)
    return snakemake is not None and bool(snakemake.resources.get("gpu"))


def _show_error(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Write an error that ends a script; nothing at Ctrl-C, which Snakemake reports itself."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


# Done on import, because a short job spends most of its time on the imports that follow.
sys.excepthook = _show_error
if _loads_model():
    forkserver.ask_server()

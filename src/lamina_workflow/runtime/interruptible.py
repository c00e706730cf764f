"""Run a module so that Ctrl-C ends it with one line, even during its imports.

    python -P -m lamina_workflow.runtime.interruptible snakemake --cores 2

`lamina` and make start their programs this way. Snakemake itself ends the jobs of a run; this
module covers the seconds before and after the run. Therefore it imports next to nothing.
"""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STOPPED = "Stopped. Run the same command to continue."
INTERRUPTED = 130  # the status with which typer silently ends a command at Ctrl-C


@contextmanager
def ending_in_one_line() -> Iterator[None]:
    """While open, Ctrl-C ends the program with one line."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            sys.exit(STOPPED)
        raise


if __name__ == "__main__":
    module = sys.argv.pop(1)
    with ending_in_one_line():
        if module == "snakemake":
            print("Listing what is left to do …", file=sys.stderr, flush=True)
        runpy.run_module(module, run_name="__main__", alter_sys=True)

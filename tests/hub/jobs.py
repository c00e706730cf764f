"""Run by the tests of the hub in an interpreter of its own: scripts of the workflow, in turn.

Usage: jobs.py, with the jobs as JSON on standard input. Writes how each ended, "" if well, as JSON
to standard output.
"""

import json
import os
import runpy
import sys
import traceback
from contextlib import redirect_stdout

from tests.given.scripts import snakemake_stand_in


def run_script(path: str, arguments: dict[str, dict[str, object]]) -> str:
    """The message with which a script ends, or the traceback of a bug."""
    try:
        with redirect_stdout(sys.stderr):
            runpy.run_path(path, {"snakemake": snakemake_stand_in(**arguments)}, "__main__")
    except SystemExit as stop:
        return str(stop.code)
    except Exception:  # noqa: BLE001, RUF100 - a bug is what the test looks for
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    messages = [run_script(path, arguments) for path, arguments in json.load(sys.stdin)]
    sys.stdout.write(json.dumps(messages))
    sys.stdout.flush()
    os._exit(0)  # threads of a broken stream are not waited for

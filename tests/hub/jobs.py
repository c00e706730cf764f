"""Run by the tests of the hub in an interpreter of its own: scripts of the workflow, one after the other.

Usage: jobs.py, with the jobs as JSON on standard input. Writes how each ended, "" if well, as JSON to standard output.
"""

import json
import os
import runpy
import sys
import traceback
from contextlib import redirect_stdout

from tests.given.scripts import snakemake_stand_in


def ended(script: str, given: dict[str, dict[str, object]]) -> str:
    """The message with which a script ends, or the traceback of a bug."""
    try:
        with redirect_stdout(sys.stderr):
            runpy.run_path(script, {"snakemake": snakemake_stand_in(**given)}, "__main__")
    except SystemExit as stop:
        return str(stop.code)
    except Exception:  # noqa: BLE001, RUF100 - a bug is what the test looks for
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    answers = [ended(script, given) for script, given in json.load(sys.stdin)]
    sys.stdout.write(json.dumps(answers))
    sys.stdout.flush()
    os._exit(0)  # threads of a broken stream are not waited for

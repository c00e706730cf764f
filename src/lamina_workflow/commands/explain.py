"""`lamina explain FILE`: why a plan removes what it does, and which job wrote a file."""

import json
import sys
from pathlib import Path

from lamina.errors import report_errors
from lamina.selection.explaining import explain_plan
from lamina.selection.plans import read_plan
from lamina.store.checksum import read_origin

RULES_OF_PLANS = ("prune_step", "pick_plan")


def explain_file(path: Path) -> list[str]:
    """Lines about a file that lamina wrote: of a plan first why, of all files from which job.

    Raises LaminaError if the file does not say which job wrote it.
    """
    origin = read_origin(path)
    lines: list[str] = []
    if origin["rule"] in RULES_OF_PLANS:
        lines = [*explain_plan(read_plan(path)), ""]
    return [*lines, json.dumps({"file": str(path), **origin}, indent=2)]


if __name__ == "__main__":
    with report_errors():
        for name in sys.argv[1:]:
            print("\n".join(explain_file(Path(name))))

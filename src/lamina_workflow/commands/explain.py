"""`lamina explain FILE`: why a plan removes what it does, and which job wrote a file."""

import json
import sys
from pathlib import Path

from lamina import paths
from lamina.errors import report_errors
from lamina.selection.explaining import explain_plan
from lamina.selection.plans import read_plan
from lamina.store.checksum import read_origin
from lamina.variant import Variant
from lamina_workflow.study.handles import resolve_variant

RULES_OF_PLANS = ("prune_step", "pick_plan")


def explain_file(path: Path) -> list[str]:
    """Lines about a file that lamina wrote: for a plan first the reasons, then the job behind it.

    Raises LaminaError if the file does not say which job wrote it.
    """
    origin = read_origin(path)
    lines: list[str] = []
    if origin["rule"] in RULES_OF_PLANS:
        lines = [*explain_plan(read_plan(path)), ""]
    return [*lines, json.dumps({"file": str(path), **origin}, indent=2)]


def find_file(text: str) -> Path:
    """The file that a user names, or the plan of the variant that the text names.

    Raises LaminaError if there is neither.
    """
    path = Path(text)
    if path.exists() or path.suffix:
        return path
    variant = Variant.parse(resolve_variant(text))
    return Path(paths.plan(variant.key, variant.removed))


if __name__ == "__main__":
    with report_errors():
        for name in sys.argv[1:]:
            print("\n".join(explain_file(find_file(name))))

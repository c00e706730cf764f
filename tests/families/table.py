"""The table of docs/families.md: `python -m tests.families.table` tries every type and writes it anew.

With names of types it tries those alone and keeps the other rows. A new version of transformers is a rerun and a diff.
"""

import re
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import transformers

from tests.families import configurations, trials

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
_BEGIN, _END = "<!-- every type: begin -->\n", "<!-- every type: end -->\n"
# What a row tells; the other trials take longer, and are asked for by name: `trials.outcome`.
TOLD = ("sweep",)
_HEAD = f"| `model_type` | {' | '.join(TOLD)} | why not |\n|---|{'---|' * len(TOLD)}---|\n"


def tried(model_type: str) -> dict[str, str]:
    """How each trial of a type ends; under `built` why there is no tiny model of it."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(60)
    torch.set_num_threads(1)
    try:
        trials.stack(configurations.model(model_type))
    except Exception as error:  # a type whose tiny configuration the rules do not find
        return {"built": f"{type(error).__name__}: {error}"}
    found = {}
    for trial in TOLD:
        with tempfile.TemporaryDirectory() as folder:
            found[trial] = trials.outcome(trial, configurations.model(model_type), Path(folder))
    return found


def row(model_type: str, outcomes: dict[str, str]) -> str:
    """A row of the table: yes or no, and each reason once, without the numbers that rounding moves."""
    if "built" in outcomes:
        why = outcomes["built"].strip().splitlines()[0]
        cells = ["?"] * len(TOLD)
        reasons = [f"no tiny model of it: {why}"]
    else:
        cells = [outcomes[trial].partition(":")[0] for trial in TOLD]
        reasons = [outcome.partition(": ")[2].splitlines()[0] for outcome in outcomes.values() if outcome != "yes"]
    told = dict.fromkeys(re.sub(r" [(]?(by|of) [0-9][^,.]*of .*?(?=[.])|/\S+", "", reason) for reason in reasons)
    text = "; ".join(reason.split(". ")[0].rstrip(".").replace("|", "\\|")[:160] for reason in told)
    return f"| `{model_type}` | {' | '.join(cells)} | {text} |\n"


def rows() -> dict[str, str]:
    """The rows that the page has."""
    table = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]
    return {line.split("`")[1]: f"{line}\n" for line in table.splitlines() if line.startswith("| `")}


def main(types: list[str]) -> None:
    known, wanted = rows() if types else {}, types or configurations.TYPES
    with ProcessPoolExecutor() as pool:
        for model_type, outcomes in zip(wanted, pool.map(tried, wanted), strict=True):
            known[model_type] = row(model_type, outcomes)
            print(known[model_type], end="", flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    table = "".join(known[model_type] for model_type in sorted(known) if model_type in configurations.TYPES)
    PAGE.write_text(before + _BEGIN + _HEAD + table + _END + rest.partition(_END)[2], encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

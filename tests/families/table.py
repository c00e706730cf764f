"""The table of docs/families.md: `python -m tests.families.table` tries every type and writes it anew.

With names of types it tries those alone and keeps the other rows. A new version of transformers is a rerun and a diff.
"""

import argparse
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import transformers

from tests.families import configurations, trials

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
_BEGIN, _END = "<!-- every type: begin -->\n", "<!-- every type: end -->\n"
_TITLES = ["`model_type`", *trials.TRIALS, "why not"]
HEAD = f"| {' | '.join(_TITLES)} |\n|{'---|' * len(_TITLES)}\n"
_WORDS = 160  # characters of a reason

Outcomes = Mapping[str, str]


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
    for trial in trials.TRIALS:
        with tempfile.TemporaryDirectory() as folder:
            found[trial] = trials.outcome(trial, configurations.model(model_type), Path(folder))
    return found


def row(model_type: str, outcomes: Outcomes) -> str:
    """A row of the table: yes or no, and each reason once, with the trials that it ends."""
    if "built" in outcomes:
        cells = ["?"] * len(trials.TRIALS)
        text = f"no tiny model of it: {_short(outcomes['built'])}"
    else:
        cells = [outcomes[trial].partition(":")[0] for trial in trials.TRIALS]
        ended: dict[str, list[str]] = {}
        for trial in trials.TRIALS:
            if outcomes[trial] != "yes":
                ended.setdefault(_short(outcomes[trial].partition(": ")[2]), []).append(trial)
        text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in ended.items())
    return f"| `{model_type}` | {' | '.join(cells)} | {text} |\n"


def _short(reason: str) -> str:
    """The first sentence of a reason, without the numbers that rounding moves."""
    line = re.sub(r" [(]?(by|of) [0-9][^,.]*of .*?(?=[.])|/\S+", "", reason.strip().splitlines()[0])
    return line.split(". ")[0].rstrip(".").replace("|", "\\|")[:_WORDS]


def rows() -> dict[str, str]:
    """The rows that the page has."""
    table = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]
    return {
        line.split("`")[1]: f"{line}\n" for line in table.splitlines() if line.startswith("| `")
    }


def counts(table: Mapping[str, str]) -> Counter[str]:
    """For how many types each trial ends with yes."""
    cells = [[cell.strip() for cell in line.split("|")[2:]] for line in table.values()]
    return Counter(
        trial
        for line in cells
        for trial, cell in zip(trials.TRIALS, line, strict=False)
        if cell == "yes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", help="only these")
    parser.add_argument("--workers", type=int, help="processes, one per processor if not given")
    told = parser.parse_args()
    known, wanted = rows() if told.types else {}, told.types or configurations.TYPES
    with ProcessPoolExecutor(told.workers) as pool:
        for model_type, outcomes in zip(wanted, pool.map(tried, wanted), strict=True):
            known[model_type] = row(model_type, outcomes)
            print(known[model_type], end="", flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    table = {
        model_type: known[model_type]
        for model_type in sorted(known)
        if model_type in configurations.TYPES
    }
    PAGE.write_text(
        before + _BEGIN + HEAD + "".join(table.values()) + _END + rest.partition(_END)[2], "utf-8"
    )
    print(
        f"{len(table)} types:",
        ", ".join(f"{trial} {number}" for trial, number in counts(table).items()),
    )


if __name__ == "__main__":
    main()

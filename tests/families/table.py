"""The table of docs/families.md: `python -m tests.families.table` tries every type and writes it.

With names of types it tries those alone and keeps the other rows. A new version of transformers is
a rerun and a diff.
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

from tests import ROOT
from tests.families import configurations, trials

PAGE = ROOT / "docs" / "families.md"
BEGIN_MARK = "<!-- every type: begin -->\n"
END_MARK = "<!-- every type: end -->\n"
TITLES = ["`model_type`", *trials.TRIALS, "why not"]
HEAD = f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}\n"
REASON_LENGTH = 160
ROUNDED_NUMBERS = re.compile(r" [(]?(by|of) [0-9][^,.]*of .*?(?=[.])|/\S+")

Outcomes = Mapping[str, str]


def try_type(model_type: str) -> dict[str, str]:
    """How each trial of a type ends; under `built` why there is no tiny model of it."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(60)
    torch.set_num_threads(1)
    try:
        trials.stack(configurations.model(model_type))
    except Exception as error:  # a type whose tiny configuration the rules do not find
        return {"built": f"{type(error).__name__}: {error}"}
    outcomes: dict[str, str] = {}
    for trial in trials.TRIALS:
        with tempfile.TemporaryDirectory() as folder:
            model = configurations.model(model_type)
            outcomes[trial] = trials.outcome(trial, model, Path(folder))
    return outcomes


def format_row(model_type: str, outcomes: Outcomes) -> str:
    """A row of the table: yes or no, and each reason once, with the trials that it ends."""
    if "built" in outcomes:
        cells = ["?"] * len(trials.TRIALS)
        explanation = f"no tiny model of it: {_shorten(outcomes['built'])}"
    else:
        cells = [outcomes[trial].partition(":")[0] for trial in trials.TRIALS]
        explanation = _explain(outcomes)
    return f"| `{model_type}` | {' | '.join(cells)} | {explanation} |\n"


def _explain(outcomes: Outcomes) -> str:
    trials_by_reason: dict[str, list[str]] = {}
    for trial in trials.TRIALS:
        if outcomes[trial] != "yes":
            _, _, reason = outcomes[trial].partition(": ")
            trials_by_reason.setdefault(_shorten(reason), []).append(trial)
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in trials_by_reason.items()]
    return "; ".join(reasons)


def _shorten(reason: str) -> str:
    """The first sentence of a reason, without the numbers that rounding moves."""
    first_line = reason.strip().splitlines()[0]
    sentence = ROUNDED_NUMBERS.sub("", first_line).split(". ")[0]
    return sentence.rstrip(".").replace("|", "\\|")[:REASON_LENGTH]


def split_page() -> tuple[str, str, str]:
    """The page before the table, the table, and the page after it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN_MARK)
    table, _, after = rest.partition(END_MARK)
    return before, table, after


def read_rows() -> dict[str, str]:
    """The rows that the page has, by type."""
    _, table, _ = split_page()
    rows: dict[str, str] = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            model_type = line.split("`")[1]
            rows[model_type] = f"{line}\n"
    return rows


def count_successes(rows: Mapping[str, str]) -> Counter[str]:
    """For how many types each trial ends with yes."""
    successes: Counter[str] = Counter()
    for line in rows.values():
        cells = [cell.strip() for cell in line.split("|")[2:]]
        for trial, cell in zip(trials.TRIALS, cells, strict=False):
            successes[trial] += cell == "yes"
    return successes


def write_rows(rows: Mapping[str, str]) -> None:
    before, _, after = split_page()
    table = "".join(rows.values())
    PAGE.write_text(before + BEGIN_MARK + HEAD + table + END_MARK + after, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", help="only these")
    parser.add_argument("--workers", type=int, help="processes, one per processor if not given")
    options = parser.parse_args()
    rows = read_rows() if options.types else {}
    model_types = options.types or configurations.TYPES
    with ProcessPoolExecutor(options.workers) as pool:
        all_outcomes = pool.map(try_type, model_types)
        for model_type, outcomes in zip(model_types, all_outcomes, strict=True):
            rows[model_type] = format_row(model_type, outcomes)
            print(rows[model_type], end="", flush=True)

    sorted_rows = {name: rows[name] for name in sorted(rows) if name in configurations.TYPES}
    write_rows(sorted_rows)
    successes = [f"{trial} {number}" for trial, number in count_successes(sorted_rows).items()]
    print(f"{len(sorted_rows)} types:", ", ".join(successes))


if __name__ == "__main__":
    main()

"""The last lines of a run that ended well: the best variant or which layers matter, the report, the database.

`python -m lamina.report.ending` writes them from the tables under the current folder's `results/`.
"""

from pathlib import Path
from typing import Any

import duckdb

from lamina.errors import explained
from lamina.models.units import replacement
from lamina.report import database, shell
from lamina.report.answers import answer, recommendations
from lamina.report.page import glance
from lamina.study import paths

KEEP = 0.95
SHOWN = 5  # calibrations, and layers of each, that are named


def lines(results: str | Path = "results", views: str | Path = paths.VIEWS) -> list[str]:
    """What to look at first. Of the variants that the report recommends for single tasks it is the one without the most
    layers; one that keeps 95 % for certain comes before others. If nothing was pruned, the lines say which layers can
    go and which matter.
    """
    with database.connect(views, sorted(Path(results, "tables").glob("*.parquet"))) as connection:
        recommended = recommendations(connection, KEEP, None)
        maps = _maps(connection)
    made = [
        row
        for row in recommended
        if row["question"] == "task" and row["kept_enough"] and not row["at_chance"]
    ]
    best = max(made, key=lambda row: (row["certain"], row["layers"], row["kept"]), default=None)
    said = _best(best) if best else "none keeps 95 % of its calibration's task"
    return [
        *(maps if maps and not recommended else [f"best variant  {said}"]),
        *_at_chance(recommended),
        f"report        {results}/report.html",
        f"database      {results}/lamina.duckdb (make sql, make query)",
    ]


def _at_chance(recommended: list[dict[str, Any]]) -> list[str]:
    """A line about the calibrations whose task the base model does not do."""
    names = [
        f"{row['model']} on {row['name']}"
        for row in recommended
        if row["question"] == "task" and row["at_chance"]
    ]
    if not names:
        return []
    return [
        f"warning       the base model guesses: {', '.join(names)}. Nothing can be lost there, so these scores say "
        "nothing of layers. Take another task, examples in the prompt (num_fewshot), or its chat template."
    ]


def _maps(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """For some calibrations: the layers that can go one at a time, those that matter most, and how sure this is."""
    sure = {
        (row["model"], row["calibration"]): row["value"]
        for row in answer(connection, "how_sure_rankings_are")
    }
    measured = [
        row
        for row in glance(answer(connection, "which_layers_matter"))
        if row["free"] or row["top"]
    ]
    shown = []
    for row in measured[:SHOWN]:
        value = sure.get((row["model"], row["calibration"]))
        shown.append(
            f"{row['model']} on {row['calibration']}: {_some(row['free'])} of {row['n_layers']} layers can go one at a "
            f"time, as far as {row['n_samples']} samples can tell; {_some([top['layer'] for top in row['top']])} "
            "matter most" + ("" if value is None else f" (reliability of the ranking {value:.2f})")
        )
    more = len(measured) - SHOWN
    return [f"layers        {line}" for line in shown] + [
        f"              and {more} more calibrations"
    ] * (more > 0)


def _some(layers: list[int]) -> str:
    """The first few layers as text, in order."""
    if not layers:
        return "none"
    return ", ".join(map(str, layers[:SHOWN])) + (
        f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    )


def _best(row: dict[str, Any]) -> str:
    margin, units = (
        196 * row["kept_stderr"],
        [unit for unit in row["units"].split() if not replacement(unit)],
    )
    kind = "layers" if all(unit.isdigit() for unit in units) else "attention and MLP halves"
    sure = "" if row["certain"] else ", not certainly 95 %"
    return (
        f"{row['variants'][0]} keeps {100 * row['kept']:.1f} ± {margin:.1f} % of {row['tasks']} "
        f"({row['n_samples']} documents) without {len(units)} of its {kind}{sure}"
    )


if __name__ == "__main__":
    with explained():
        said = lines()
        database.opened(shell.DATABASE).close()  # before anybody is sent there
        print("\n".join(said))

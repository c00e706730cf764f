"""The last three lines of a run that ended well: the best variant, the report, the database.

`python -m lamina.reporting.ending` writes them from the tables under the current folder's `results/`.
"""

from pathlib import Path
from typing import Any

from lamina import paths
from lamina.errors import explained
from lamina.reporting import database, shell
from lamina.reporting.recommendation import recommendations
from lamina.variant import DONOR

KEEP = 0.95


def lines(results: str | Path = "results", views: str | Path = paths.VIEWS) -> list[str]:
    """What to look at first; of what the report recommends for single tasks the variant that lacks most, one that is
    certain to keep 95 % before."""
    with database.connect(views, sorted(Path(results, "tables").glob("*.parquet"))) as connection:
        found = recommendations(connection, KEEP, None)
    made = [row for row in found if row["question"] == "task" and row["kept_enough"] and not row["at_chance"]]
    best = max(made, key=lambda row: (row["certain"], row["layers"], row["kept"]), default=None)
    said = _best(best) if best else "none keeps 95 % of its calibration's task"
    return [
        f"best variant  {said}",
        f"report        {results}/report.html",
        f"database      {results}/lamina.duckdb (make sql, make query)",
    ]


def _best(row: dict[str, Any]) -> str:
    margin, units = 196 * row["kept_stderr"], [unit for unit in row["units"].split() if DONOR not in unit]
    kind = "layers" if all(unit.isdigit() for unit in units) else "attention and MLP halves"
    sure = "" if row["certain"] else ", not certainly 95 %"
    return (
        f"{row['variants'][0]} keeps {100 * row['kept']:.1f} ± {margin:.1f} % of {row['tasks']} "
        f"({row['n_samples']} documents) without {len(units)} of its {kind}{sure}"
    )


if __name__ == "__main__":
    with explained():
        said = lines()
        shell.connect().close()  # before anybody is sent there
        print("\n".join(said))

"""The variants of several runs in one sortable table: a page of one file.

`python -m lamina_workflow.report.leaderboard A/results B/results --output leaderboard.html` writes
it. A run is named by what was written for it. Nothing is tested here: `lamina compare` says which
numbers of two runs differ.
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lamina import paths
from lamina.errors import report_errors
from lamina.store import parquet
from lamina_workflow.report.answers import query_rows
from lamina_workflow.report.database import open_database
from lamina_workflow.report.formatting import make_environment

TEMPLATE = "workflow/report/leaderboard.html.j2"
VARIANTS = """
    SELECT v.*, n_layers,
        concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing) AS variant
    FROM variants AS v JOIN models USING (model)
    WHERE selector <> 'none'
    ORDER BY model, own_tasks, own_kept DESC NULLS LAST, layers DESC, variant"""


def read_variants(runs: Sequence[str]) -> list[dict[str, Any]]:
    """The variants of each run with their scores, run by run, best first.

    runs: Files `lamina.duckdb`, or the folders that hold them.

    Raises LaminaError if there is no database, or a damaged one.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        file = Path(run, "lamina.duckdb") if Path(run).is_dir() else Path(run)
        with closing(open_database(file)) as connection:
            rows += [{"run": run, **row} for row in query_rows(connection, VARIANTS)]
    return rows


def render_leaderboard(variants: Sequence[dict[str, Any]], n_runs: int) -> str:
    """The page as HTML, for variants from `read_variants`."""
    template = Path(paths.locate(TEMPLATE))
    environment = make_environment(template.parent)
    return environment.get_template(template.name).render(variants=variants, n_runs=n_runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="lamina.duckdb of each run, or its folder")
    parser.add_argument("--output", default="leaderboard.html", help="path of the page")
    arguments = parser.parse_args()
    variants = read_variants(arguments.runs)
    parquet.write_text(arguments.output, render_leaderboard(variants, len(arguments.runs)))
    print(f"{arguments.output} ranks {len(variants)} variants of {len(arguments.runs)} runs.")


if __name__ == "__main__":
    with report_errors():
        main()

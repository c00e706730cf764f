"""The data dictionary as a page, made from the schemas and the comments of `sql/*.sql`.

PYTHONPATH=src python tools/tables_page.py > docs/tables.md
"""

import tempfile
from pathlib import Path

from lamina.report import database
from lamina.store import parquet as store
from lamina.study.paths import VIEWS

INTRODUCTION = """\
# Tables

Every result is a row of a table: a Parquet file under `results/tables/`, and a view of the same name in
`results/lamina.duckdb`, which has further views derived from them. This page is written by
`python tools/tables_page.py` from `src/lamina/tables/` and `sql/*.sql`, where each column is described once.

A variant is spelled out in six columns: model, calibration, selector, removed, repair, healing. The base model has
`removed` = 0 and `none` in the others. Layers keep the numbers they have in the base model. Each file's metadata name
the version of lamina, all that the job was told that wrote it (`lamina.job`; `make explain` prints it) and, where one
job measured it, the digest of its code, a hash of its settings, and its seed.

The views show the study that ran last. A results folder in which several configurations were run keeps the tables of
each: `studies.benchmarks`, and so on for every table and view below, has a first column `study`, the name of the
configuration file, and `"NAME".benchmarks` is that of one. To forget a study, delete `results/studies/NAME` and
`results/lamina.duckdb`, and run again.
"""


def page(views: str | Path = VIEWS) -> str:
    """The dictionary in Markdown: a section for each table, then for each derived view, in the order of the SQL."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{table}.parquet" for table in store.TABLES]
        for file in files:
            store.write(file, store.schema(file.stem).empty_table())
        with database.connect(views, files) as connection:
            database.describe(connection)
            described = connection.execute(
                """SELECT v.view_name, v.comment, c.column_name, c.data_type, c.comment
                FROM duckdb_views() AS v JOIN duckdb_columns() AS c ON c.table_name = v.view_name
                WHERE NOT v.internal AND NOT c.internal ORDER BY v.view_oid, c.column_index"""
            ).fetchall()
    text, section = INTRODUCTION, None
    for view, grain, column, kind, comment in described:
        if view != section:
            note = "" if view in store.TABLES else "*A view derived from the tables.* "
            text += f"\n## {view}\n\n{note}{grain}\n\n| column | type | |\n|---|---|---|\n"
            section = view
        text += f"| `{column}` | {kind.lower()} | {str(comment).replace('|', chr(92) + '|')} |\n"
    return text


if __name__ == "__main__":
    print(page(), end="")

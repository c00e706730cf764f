"""The data dictionary as a page, made from the schemas and the comments of `sql/*.sql`.

PYTHONPATH=src python tools/tables_page.py > docs/tables.md
"""

import tempfile
from pathlib import Path

from lamina.store import parquet
from lamina_workflow.report import database

INTRODUCTION = """\
# Tables

Every result is a row of a table. Each table is a Parquet file under `results/tables/` and a table of the same name in
`results/lamina.duckdb`. The database also holds the views of `sql/*.sql`, which are derived from the tables.
`python tools/tables_page.py` writes this page from `src/lamina/tables/` and `sql/*.sql`, which describe each column once.

Six columns identify a variant: model, calibration, selector, removed, repair, healing. The base model has `none` for
calibration, selector, repair and healing. Layers are numbered as in the base model. The metadata of each file name the
version of lamina and all inputs of the job that wrote it (`lamina.job`; `make explain` prints it). If a single job
measured the file, they also name the digest of its code, a hash of its settings, and its seed.

The tables show the study that ran last. If several configurations were run in a results folder, it keeps the tables of
each. `studies.benchmarks` (and so on for every table below) holds all studies; its first column `study` is the name of
the configuration file. `"NAME".benchmarks` holds one study. To delete a study, delete `results/studies/NAME` and
`results/lamina.duckdb`, and run again.
"""


def page() -> str:
    """The dictionary in Markdown: a section for each table, in the order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{table}.parquet" for table in parquet.TABLES]
        for file in files:
            parquet.write_table(file, parquet.schema_of(file.stem).empty_table())
        database.build_database(files, Path(folder) / "lamina.duckdb")
        with database.open_database(Path(folder) / "lamina.duckdb") as connection:
            described = connection.execute(
                """SELECT t.table_name, t.comment, c.column_name, c.data_type, c.comment
                FROM duckdb_tables() AS t JOIN duckdb_columns() AS c USING (schema_name, table_name)
                WHERE schema_name = 'main' ORDER BY t.table_name, c.column_index"""
            ).fetchall()
    text, section = INTRODUCTION, None
    for table, grain, column, kind, comment in described:
        if table != section:
            note = "" if table in parquet.TABLES else "*Derived from the others.* "
            text += f"\n## {table}\n\n{note}{grain}\n\n| column | type | |\n|---|---|---|\n"
            section = table
        text += f"| `{column}` | {kind.lower()} | {str(comment).replace('|', chr(92) + '|')} |\n"
    return text


if __name__ == "__main__":
    print(page(), end="")

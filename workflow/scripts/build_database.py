"""Build the DuckDB database of a run: the views of `sql/views.sql` over its tables."""

from pathlib import Path

from lamina.errors import explained
from lamina.report import database
from lamina.stages.build_database import BuildDatabase

if __name__ == "__main__":
    with explained():
        job = BuildDatabase.read()
        database.build(Path(job.views[0]), [Path(table) for table in job.tables], Path(job.output), job.study)

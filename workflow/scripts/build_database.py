"""Write the DuckDB database of a run: its tables and what the views of `sql/views.sql` make of them, in one file."""

from pathlib import Path

from lamina.report import database
from lamina.runtime.script import running
from lamina.stages.report import BuildDatabase

if __name__ == "__main__":
    with running(snakemake):
        job = BuildDatabase.read(snakemake)
        database.build(
            Path(job.views[0]), [Path(table) for table in job.tables], Path(job.output), job.study
        )

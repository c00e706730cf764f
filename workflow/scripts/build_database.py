"""Write the DuckDB database of a run, in one file.

It holds the tables of the run, and the views of `sql/views.sql` on them.
"""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina_workflow.report import database
from lamina_workflow.stages.report import BuildDatabase

if __name__ == "__main__":
    with run_script(snakemake):
        job = BuildDatabase.read(snakemake)
        tables = [Path(table) for table in job.tables]
        database.build_database(tables, Path(job.output), job.study)

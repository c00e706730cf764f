"""Test every pair of selectors at equal size and repair, on the documents of both."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.store import parquet
from lamina_workflow.report import database
from lamina_workflow.report.paired_tests import compare_selectors
from lamina_workflow.stages.report import CompareSelectors

if __name__ == "__main__":
    with run_script(snakemake):
        job = CompareSelectors.read(snakemake)
        tables = [Path(table) for table in job.tables]
        connection = database.connect_views(tables)
        rows = compare_selectors(connection)
        parquet.write_table(job.output, parquet.from_rows("comparisons", rows), job.provenance)

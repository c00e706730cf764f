"""Test every selector against every other one at equal size and repair, on the documents that both were tested on."""

from pathlib import Path

from lamina.report import database
from lamina.report.paired_tests import compare_selectors
from lamina.runtime.script import running
from lamina.stages.report import CompareSelectors
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = CompareSelectors.read(snakemake)
        rows = compare_selectors(
            database.connect(Path(job.views[0]), [Path(table) for table in job.tables])
        )
        store.write(job.output, store.from_rows("comparisons", rows))

"""Render the report of a run: one self-contained HTML file."""

from pathlib import Path

from lamina.report import database
from lamina.report import page as report
from lamina.runtime.script import running
from lamina.stages.report import RenderReport
from lamina.store import checksum as seal
from lamina.store import parquet as store

COMPUTED = ("against_base", "repairs", "variants", "answers")  # views that many questions read

if __name__ == "__main__":
    with running(snakemake):
        job = RenderReport.read(snakemake)
        tables = [Path(table) for table in job.tables]
        connection = database.connect(Path(job.views[0]), tables, computed=COMPUTED)
        facts = seal.read_json(job.facts)
        options = (
            facts,
            job.report.keep,
            job.report.general_text,
            job.names,
            job.report.counted_from,
            job.sizes,
        )
        page = report.render(connection, map(Path, job.figures), Path(job.template), *options)
        store.write_text(job.output, page)

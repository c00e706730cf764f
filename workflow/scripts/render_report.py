"""Render the report of a run: one self-contained HTML file."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.store import checksum, parquet
from lamina_workflow.report import database
from lamina_workflow.report.judgements import read_judgements
from lamina_workflow.report.page import render_report
from lamina_workflow.stages.report import RenderReport

# Views that many questions read.
REPEATED_VIEWS = ("against_base", "repairs", "variants", "variant_sizes", "answers")

if __name__ == "__main__":
    with run_script(snakemake):
        job = RenderReport.read(snakemake)
        connection = database.connect_views(
            [Path(table) for table in job.tables],
            computed=REPEATED_VIEWS,
        )
        page = render_report(
            connection,
            figures=[Path(figure) for figure in job.figures],
            template=Path(job.template),
            facts=checksum.read_json(job.facts),
            keep=job.report.keep,
            general_text=job.report.general_text,
            names=job.names,
            counted_from=job.report.counted_from,
            sizes=job.sizes,
            must_load=job.report.must_load,
            judgements=read_judgements(job.judged),
        )
        parquet.write_text(job.output, page)

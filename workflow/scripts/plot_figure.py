"""Draw one figure from the tables of a run, and write what it draws."""

import re
from pathlib import Path

from lamina.modules import load
from lamina.report import database
from lamina.report.figures.drawing import drawn
from lamina.runtime.script import running
from lamina.stages.report import PlotFigure
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = PlotFigure.read(snakemake)
        load(f"lamina.report.figures.{job.figure}")
        # The caption, the file and the drawing all use these views, so they are computed once.
        names = re.findall(
            r"\w+", "".join(Path(file).read_text(encoding="utf-8") for file in job.queries)
        )
        connection = database.connect(
            Path(job.views[0]), [Path(table) for table in job.tables], computed=names
        )
        drawing = drawn(job.figure, connection)
        store.write_text(job.data, drawing.csv)
        store.write_text(job.output, drawing.svg)

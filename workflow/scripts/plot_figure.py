"""Draw one figure from the tables of a run; write the picture and the drawn numbers."""

import re
from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.store import parquet
from lamina_workflow.report import database
from lamina_workflow.report.figures.drawing import draw_figure
from lamina_workflow.stages.report import PlotFigure

if __name__ == "__main__":
    with run_script(snakemake):
        job = PlotFigure.read(snakemake)
        # The caption, the CSV file and the picture all use the views that the queries name, so
        # these are computed only once.
        sql = "".join(Path(query).read_text(encoding="utf-8") for query in job.queries)
        connection = database.connect_views(
            [Path(table) for table in job.tables],
            computed=re.findall(r"\w+", sql),
        )
        drawing = draw_figure(job.figure, connection)
        parquet.write_text(job.data, drawing.csv)
        parquet.write_text(job.output, drawing.svg)

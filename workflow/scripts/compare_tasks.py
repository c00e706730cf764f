"""Compare the accuracy relevance that each unit of base models has for pairs of calibrations."""

from pyarrow import dataset

from lamina.relevance.dissociation import dissociations
from lamina.store import parquet
from lamina_workflow.runtime.script import running
from lamina_workflow.stages.report import CompareTasks

if __name__ == "__main__":
    with running(snakemake):
        job = CompareTasks.read(snakemake)
        calibrations = parquet.read(job.calibrations).to_pylist()
        rows = dissociations(calibrations, dataset.dataset(job.sweeps))
        parquet.write(job.output, parquet.from_rows("dissociations", rows))

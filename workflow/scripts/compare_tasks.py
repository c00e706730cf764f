"""Compare the accuracy relevance of each unit of base models between pairs of calibrations."""

from lamina_workflow.runtime.script import run_script

from pyarrow import dataset

from lamina.relevance.dissociation import dissociation_rows
from lamina.store import parquet
from lamina_workflow.stages.report import CompareTasks

if __name__ == "__main__":
    with run_script(snakemake):
        job = CompareTasks.read(snakemake)
        calibrations = parquet.read_table(job.calibrations).to_pylist()
        rows = dissociation_rows(calibrations, dataset.dataset(job.sweeps))
        parquet.write_table(job.output, parquet.from_rows("dissociations", rows), job.provenance)

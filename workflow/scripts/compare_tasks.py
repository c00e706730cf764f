"""Compare the accuracy relevance that each unit of unpruned models has for pairs of calibrations."""

from pyarrow import dataset

from lamina.relevance.dissociation import dissociations
from lamina.runtime.script import running
from lamina.stages.report import CompareTasks
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = CompareTasks.read(snakemake)
        rows = dissociations(store.read(job.calibrations).to_pylist(), dataset.dataset(job.sweeps))
        store.write(job.output, store.from_rows("dissociations", rows))

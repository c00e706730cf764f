"""Turn a sweep into relevance scores with intervals, for every metric that it allows."""

import json

from lamina.data.calibrations import METADATA_KEY
from lamina.relevance.columns import Context
from lamina.relevance.score import relevance
from lamina.store import parquet
from lamina_workflow.runtime.script import running
from lamina_workflow.stages.sweep import ScoreRelevance

if __name__ == "__main__":
    with running(snakemake):
        job = ScoreRelevance.read(snakemake)
        sweep = parquet.read(job.sweep)
        facts = json.loads(parquet.read(job.calibration, ["sample"]).schema.metadata[METADATA_KEY])
        context = Context(facts["chance_accuracy"], job.score, job.keys["removed"], job.seed)
        rows = []
        if sweep.num_rows:
            rows = relevance(sweep, job.metrics, context, job.seed)
        table = parquet.from_rows("relevance", rows, **job.keys)
        parquet.write(job.output, table, job.provenance)

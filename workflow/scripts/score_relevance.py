"""Turn a sweep into relevance scores with intervals, by every metric that it measured."""

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.store import parquet
from lamina_workflow.stages.sweep import ScoreRelevance

if __name__ == "__main__":
    with run_script(snakemake):
        job = ScoreRelevance.read(snakemake)
        sweep = parquet.read_table(job.sweep)
        facts = calibrations.read_facts(job.calibration)
        context = Context(facts["chance_accuracy"], job.score, job.keys["removed"], job.seed)
        rows = []
        if sweep.num_rows:
            rows = score_sweep(sweep, job.metrics, context, job.seed)
        table = parquet.from_rows("relevance", rows, **job.keys)
        parquet.write_table(job.output, table, job.provenance)

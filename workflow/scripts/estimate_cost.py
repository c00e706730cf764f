"""Count the work of a configuration from its models, calibrations and tasks."""

from pathlib import Path

import lamina_workflow.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.store import parquet
from lamina_workflow.checks.load import load
from lamina_workflow.cost.estimate import estimate
from lamina_workflow.runtime.script import running
from lamina_workflow.stages.prepare import EstimateCost

if __name__ == "__main__":
    with running(snakemake):
        job = EstimateCost.read(snakemake)
        config = load(job.config, Path.cwd())
        parquet.write_json(job.output, estimate(config, job.manifests, job.calibrations, job.tasks))

"""Count the work of a configuration from its models, calibrations and tasks."""

from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.checks.load import load
from lamina.cost.estimate import estimate
from lamina.runtime.script import running
from lamina.stages.prepare import EstimateCost
from lamina.store import parquet

if __name__ == "__main__":
    with running(snakemake):
        job = EstimateCost.read(snakemake)
        config = load(job.config, Path.cwd())
        parquet.write_json(job.output, estimate(config, job.manifests, job.calibrations, job.tasks))

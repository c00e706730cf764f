"""Count the work of a configuration from its models, calibrations and tasks, before any of it is done."""

from pathlib import Path

from lamina.cost.estimate import estimate
from lamina.errors import explained
from lamina.stages.estimate_cost import EstimateCost
from lamina.store import parquet as store
from lamina.study.load import load

if __name__ == "__main__":
    with explained():
        job = EstimateCost.read()
        config = load(job.config, Path.cwd())
        store.write_json(job.output, estimate(config, job.manifests, job.calibrations, job.tasks))

"""Count the work of a configuration from its models, calibrations and tasks."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.store import parquet
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.cost.estimate import estimate_cost
from lamina_workflow.stages.prepare import EstimateCost

if __name__ == "__main__":
    with run_script(snakemake):
        job = EstimateCost.read(snakemake)
        config = load_configuration(job.config, Path.cwd())
        cost = estimate_cost(config, job.manifests, job.calibrations, job.tasks)
        parquet.write_json(job.output, cost, job.description)

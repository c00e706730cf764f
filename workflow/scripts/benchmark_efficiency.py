"""Measure size, speed and memory of one variant per cost among all variants of a model.

Variants are timed in turn with the base model.
"""

from typing import Any

from lamina_workflow.runtime.script import run_script

from lamina.evaluation import assembly, efficiency
from lamina.models.load import load_model
from lamina.store import checksum, parquet
from lamina.variant import Variant
from lamina_workflow.stages.benchmark import BenchmarkEfficiency


def measure_variants(job: BenchmarkEfficiency) -> list[dict[str, Any]]:
    """Rows of table `efficiency`."""
    base = load_model(checksum.read_json(job.manifest), check=job.check)
    variants = [Variant.parse(text) for text in job.variants]
    plans = {
        variant: assembly.read_plan(variant)
        for variant in variants
        if not assembly.find_refusal(variant)
    }
    n_runs = efficiency.one_per_cost(plans)
    models = (
        (variant.row() | {"runs": n_runs[variant], "timed": str(variant)}, model)
        for variant, model in assembly.materialise_in_turn(base, list(n_runs))
    )
    return efficiency.measure_efficiency(base, models, job.efficiency)


if __name__ == "__main__":
    with run_script(snakemake):
        job = BenchmarkEfficiency.read(snakemake)
        rows = measure_variants(job) if job.variants else []
        parquet.write_table(job.output, parquet.from_rows("efficiency", rows), job.provenance)

"""Measure size, speed and memory of all variants of a model, in turn with the base model.

Of variants that cost the same, the first is timed.
"""

from typing import Any

from lamina_workflow.runtime.script import run_script

from lamina.evaluation import assembly, efficiency
from lamina.models.load import load_model
from lamina.store import checksum, parquet
from lamina_workflow.stages.benchmark import BenchmarkEfficiency


def measure_variants(job: BenchmarkEfficiency) -> list[dict[str, Any]]:
    """Rows of table `efficiency`."""
    base = load_model(checksum.read_json(job.manifest), check=job.check)
    models = (
        (variant.row() | {"timed": str(variant)}, model)
        for variant, model in assembly.materialise_in_turn(base, job.files_by_variant())
    )
    return efficiency.measure_efficiency(base, models, job.efficiency)


if __name__ == "__main__":
    with run_script(snakemake):
        job = BenchmarkEfficiency.read(snakemake)
        rows = measure_variants(job) if job.variants else []
        parquet.write_table(job.output, parquet.from_rows("efficiency", rows), job.provenance)

"""Measure size, speed and memory of one variant per cost among all variants of a model, in turn against the base."""

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.evaluation import assembly, efficiency
from lamina.models.load import load_model
from lamina.runtime.script import running
from lamina.stages.benchmark import BenchmarkEfficiency
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.variant import Variant

if __name__ == "__main__":
    with running(snakemake):
        job = BenchmarkEfficiency.read(snakemake)
        listed, rows = [Variant.parse(text) for text in job.variants], []
        if listed:
            base = load_model(seal.read_json(job.manifest), check=job.check)
            made = [variant for variant in listed if not assembly.refused(variant)]
            chosen = efficiency.one_per_cost({variant: assembly.plan(variant) for variant in made})
            pairs = (
                (variant.row() | {"runs": chosen[variant], "timed": str(variant)}, model)
                for variant, model in assembly.in_turn(base, list(chosen))
            )
            rows = efficiency.measure(base, pairs, job.efficiency)
        store.write(job.output, store.from_rows("efficiency", rows), job.provenance)

"""Put the blocks of one sweep together."""

from lamina.runtime.script import running
from lamina.stages.sweep import GatherSweep
from lamina.store import parquet

if __name__ == "__main__":
    with running(snakemake):
        job = GatherSweep.read(snakemake)
        # All blocks have the same code, settings and seed; only their number differs.
        provenance = parquet.kept_provenance(job.blocks[0])
        parquet.write(job.output, parquet.gather("sweeps", job.blocks), provenance)

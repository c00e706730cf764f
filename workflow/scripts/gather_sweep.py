"""Put the blocks of one sweep together."""

from lamina.errors import explained
from lamina.stages.gather_sweep import GatherSweep
from lamina.store import parquet as store

if __name__ == "__main__":
    with explained():
        job = GatherSweep.read()
        # All blocks have the same code, settings and seed; only their number differs.
        store.write(job.output, store.gather("sweeps", job.blocks), store.kept_provenance(job.blocks[0]))

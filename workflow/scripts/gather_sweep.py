"""Put the blocks of one sweep together."""

from lamina_workflow.runtime.script import run_script

from lamina.store import parquet
from lamina_workflow.stages.sweep import GatherSweep

if __name__ == "__main__":
    with run_script(snakemake):
        job = GatherSweep.read(snakemake)
        # All blocks have the same code and settings; only their number differs.
        provenance = parquet.kept_provenance(job.blocks[0]) | {"job": job.description}
        parquet.write_table(job.output, parquet.gather_tables("sweeps", job.blocks), provenance)

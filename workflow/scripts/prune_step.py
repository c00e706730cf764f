"""Choose the units that one selector removes at one size."""

from lamina.runtime.script import running
from lamina.selection import choosing, plans
from lamina.stages.prune import PruneStep
from lamina.store import checksum as seal

if __name__ == "__main__":
    with running(snakemake):
        job = PruneStep.read(snakemake)
        n_layers = seal.read_json(job.manifest)["n_layers"]
        previous = plans.read(job.previous) if job.previous else choosing.empty(job)
        refused, step = choosing.evidence(job, previous)
        plans.write(job.output, choosing.choose(job, n_layers, previous, refused, step))

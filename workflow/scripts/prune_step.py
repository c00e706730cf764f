"""Choose the units that one selector removes at one size."""

from lamina.errors import explained
from lamina.selection import choosing, plans
from lamina.stages.prune_step import PruneStep
from lamina.store import checksum as seal

if __name__ == "__main__":
    with explained():
        job = PruneStep.read()
        n_layers = seal.read_json(job.manifest)["n_layers"]
        previous = plans.read(job.previous) if job.previous else None
        refused, step = choosing.evidence(job.selector, job.scored, job.activations, previous)
        if refused:
            plan = choosing.empty(job.selector, job.keys, refused)
        else:
            donors = job.donors.records if job.donors else None
            plan = choosing.choose(job.selector, job.keys, n_layers, step, previous, donors)
        plans.write(job.output, plan)

"""Choose the units that one selector removes at one size."""

from lamina.modules import load
from lamina.runtime.script import running
from lamina.selection import choosing, plans
from lamina.stages.prune import PruneStep
from lamina.store import checksum as seal

if __name__ == "__main__":
    with running(snakemake):
        job = PruneStep.read(snakemake)
        manifest = seal.read_json(job.manifest)
        previous = plans.read(job.previous) if job.previous else None
        refused, step = choosing.evidence(job.selector, job.scored, job.activations, previous)
        if refused:
            plan = choosing.empty(job.selector, job.keys, refused)
        else:
            given = job.replacements.given(job.manifests) if job.replacements else None
            kinds = (
                load("lamina.models.cutting").kinds_of(manifest)
                if job.selector.periods == "whole"
                else ()
            )
            depth, share = manifest["n_layers"], job.selector.attention(manifest["attention_share"])
            plan = choosing.choose(
                job.selector, job.keys, depth, step, previous, given, kinds, share
            )
        plans.write(job.output, plan)

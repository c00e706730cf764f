"""Hand out the plan of one size from those that a search found."""

from lamina.errors import LaminaError
from lamina.runtime.script import running
from lamina.selection import plans
from lamina.selection.plans import Plan
from lamina.stages.prune import PickPlan
from lamina.store import checksum as seal

if __name__ == "__main__":
    with running(snakemake):
        job = PickPlan.read(snakemake)
        searched = [Plan(**plan) for plan in seal.read_json(job.plans)["plans"]]
        sizes = [plan.removed for plan in searched]
        if job.removed not in sizes:
            raise LaminaError(
                f"no study has its search remove {job.removed} units, only {sizes}. Add {job.removed} to `removed` "
                "of a study."
            )
        plans.write_plan(job.output, searched[sizes.index(job.removed)])

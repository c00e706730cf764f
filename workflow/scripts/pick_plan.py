"""Write the plan of one size, from those that a search found."""

from lamina_workflow.runtime.script import run_script

from lamina.errors import LaminaError
from lamina.selection.plans import Plan, write_plan
from lamina.store import checksum
from lamina_workflow.stages.prune import PickPlan

if __name__ == "__main__":
    with run_script(snakemake):
        job = PickPlan.read(snakemake)
        searched = [Plan(**plan) for plan in checksum.read_json(job.plans)["plans"]]
        plan_by_size = {plan.removed: plan for plan in searched}
        if job.removed not in plan_by_size:
            raise LaminaError(
                f"no study has its search remove {job.removed} units, only {list(plan_by_size)}. "
                f"Add {job.removed} to `removed` of a study."
            )
        write_plan(job.output, plan_by_size[job.removed], job.description)

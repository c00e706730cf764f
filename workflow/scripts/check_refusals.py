"""End a run with an error if a plan or repair that the configuration requires was refused.

All other jobs are done by then.
"""

from typing import Any

from lamina_workflow.runtime.script import run_script

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.stages.report import CheckRefusals

Rows = list[dict[str, Any]]


def collect_refusals(plan_rows: Rows, patch_rows: Rows) -> dict[str, str]:
    """The reason for each refusal, by what was refused. A key counts once."""
    reasons: dict[str, str] = {}
    for row in plan_rows:
        if row["refused"]:
            key = f"{row['model']}/{row['calibration']}/{row['selector']}"
            reasons.setdefault(key, row["refused"])
    for row in patch_rows:
        if row["refused"]:
            plan = f"{row['model']}/{row['calibration']}/{row['selector']}/removed={row['removed']}"
            reasons.setdefault(f"{plan}/{row['repair']}", row["refused"])
    return reasons


if __name__ == "__main__":
    with run_script(snakemake):
        job = CheckRefusals.read(snakemake)
        plan_rows = parquet.read_table(job.plans).to_pylist()
        patch_rows = parquet.read_table(job.patches).to_pylist()
        reasons = collect_refusals(plan_rows, patch_rows)
        if reasons:
            lines = [f"  {key}: {reason}" for key, reason in reasons.items()]
            raise LaminaError("the run is complete but for what was refused:\n" + "\n".join(lines))
        plans = {
            (row["model"], row["calibration"], row["selector"], row["removed"]) for row in plan_rows
        }
        parquet.write_text(job.output, f"{len(plans)} plans, none refused\n")

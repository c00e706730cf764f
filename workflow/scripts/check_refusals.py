"""End a run with an error if a plan or repair that the config asks for was refused; all else is done by then."""

from lamina.errors import LaminaError
from lamina.runtime.script import running
from lamina.stages.report import CheckRefusals
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = CheckRefusals.read(snakemake)
        rows = store.read(job.plans).to_pylist()
        refused = {}
        for row in rows:
            if row["refused"]:
                refused.setdefault(
                    (row["model"], row["calibration"], row["selector"]), row["refused"]
                )
        for row in store.read(job.patches).to_pylist():
            if row["refused"]:
                key = (
                    row["model"],
                    row["calibration"],
                    row["selector"],
                    f"removed={row['removed']}",
                    row["repair"],
                )
                refused.setdefault(key, row["refused"])
        if refused:
            lines = [f"  {'/'.join(key)}: {reason}" for key, reason in refused.items()]
            raise LaminaError("the run is complete but for what was refused:\n" + "\n".join(lines))
        plans = {
            (row["model"], row["calibration"], row["selector"], row["removed"]) for row in rows
        }
        store.write_text(job.output, f"{len(plans)} plans, none refused\n")

"""Refuse a calibration with documents of a benchmark, and count those that share passages with one."""

from lamina_workflow.runtime.script import run_script

from lamina.data import overlap
from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.stages.prepare import CheckOverlap

# The share of a calibration that may be near duplicates of test documents: natural splits
# hold a few.
MAX_NEAR_SHARE = 0.01


def read_documents(path: str) -> list[tuple[str, list[int]]]:
    """Each document once: its hash, and the hashes of its runs of words."""
    runs_by_document: dict[str, list[int]] = {}
    for row in parquet.read_table(path, ["document", "runs"]).to_pylist():
        # Only the first row of a question has its runs.
        runs_by_document.setdefault(row["document"], row["runs"])
    return list(runs_by_document.items())


def refuse_overlap(job: CheckOverlap, shared: overlap.Overlap, counts: str, limit: float) -> None:
    """Raise LaminaError if test documents, or more near duplicates than `limit`, are shared."""
    remedy = "Calibrate on another split, or on documents that the benchmark does not use."
    if shared.equal:
        raise LaminaError(
            f"calibrations.{job.calibration} shares {shared.equal} {counts}: a score on seen "
            f"documents says nothing. {remedy}"
        )
    if shared.near > limit:
        raise LaminaError(
            f"calibrations.{job.calibration} shares at least half of the text of {shared.near} "
            f"{counts}, which is more than {MAX_NEAR_SHARE:.0%}: they differ by a few words. "
            f"{remedy}"
        )


if __name__ == "__main__":
    with run_script(snakemake):
        job = CheckOverlap.read(snakemake)
        calibrated = read_documents(job.samples)
        tested = read_documents(job.documents)
        shared = overlap.count_shared_documents(calibrated, tested)
        counts = (
            f"of its {len(calibrated)} documents with the {len(tested)} test documents of "
            f"benchmark '{job.task}'"
        )
        refuse_overlap(job, shared, counts, limit=MAX_NEAR_SHARE * len(calibrated))
        parquet.write_json(
            job.output,
            {
                "calibration": job.calibration,
                "task": job.task,
                "documents": len(calibrated),
                "tested": len(tested),
                "near": shared.near,
                "sharing": shared.sharing,
            },
            job.description,
        )

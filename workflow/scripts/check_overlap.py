"""Refuse a calibration with documents of a benchmark; count those that share passages with one."""

from lamina_workflow.runtime.script import run_script

from lamina.data import overlap
from lamina.store import parquet
from lamina_workflow.stages.prepare import CheckOverlap


def read_documents(path: str) -> list[tuple[str, list[int]]]:
    """Each document once: its hash, and the hashes of its word runs."""
    runs_by_document: dict[str, list[int]] = {}
    for row in parquet.read_table(path, ["document", "runs"]).to_pylist():
        if row["document"] is not None:
            # Only the first row of a question holds its word runs.
            runs_by_document.setdefault(row["document"], row["runs"])
    return list(runs_by_document.items())


if __name__ == "__main__":
    with run_script(snakemake):
        job = CheckOverlap.read(snakemake)
        calibrated = read_documents(job.samples)
        tested = read_documents(job.documents)
        shared = overlap.check_overlap(job.calibration, calibrated, job.task, tested)
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

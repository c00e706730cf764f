"""Refuse a calibration that holds documents of a benchmark, and count those that share passages with one."""

from lamina.data import overlap
from lamina.errors import LaminaError
from lamina.runtime.script import running
from lamina.stages.prepare import CheckOverlap
from lamina.store import parquet as store

# The share of a calibration's documents that may be near duplicates of test documents: natural splits hold a few.
MOST = 0.01


def documents(path: str) -> list[tuple[str, list[int]]]:
    """Each document once: its hash, and the hashes of its runs of words."""
    data = store.read(path, ["document", "runs"]).to_pylist()
    runs: dict[str, list[int]] = {}
    for row in data:  # the first row of a question has its runs
        runs.setdefault(row["document"], row["runs"])
    return list(runs.items())


if __name__ == "__main__":
    with running(snakemake):
        job = CheckOverlap.read(snakemake)
        used, tested = documents(job.samples), documents(job.documents)
        shared = overlap.compare(used, tested)
        counts = f"of its {len(used)} documents with the {len(tested)} test documents of benchmark '{job.task}'"
        remedy = "Calibrate on another split, or on documents that the benchmark does not use."
        if shared.equal:
            raise LaminaError(
                f"calibrations.{job.calibration} shares {shared.equal} {counts}: a score on seen documents says "
                f"nothing. {remedy}"
            )
        if shared.near > MOST * len(used):
            raise LaminaError(
                f"calibrations.{job.calibration} shares at least half of the text of {shared.near} {counts}, which is "
                f"more than {MOST:.0%}: they differ by a few words. {remedy}"
            )
        facts = {
            "calibration": job.calibration,
            "task": job.task,
            "documents": len(used),
            "tested": len(tested),
        }
        store.write_json(job.output, facts | {"near": shared.near, "sharing": shared.sharing})

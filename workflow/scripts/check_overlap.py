"""Refuse a calibration that holds documents of a benchmark, and count those that share passages with one."""

from lamina.data import overlap
from lamina.errors import LaminaError, explained
from lamina.jobs.check_overlap import CheckOverlap
from lamina.tables import store

# Of a calibration's documents that may be near duplicates of test documents: natural splits hold a few.
MOST = 0.01


def documents(path: str) -> list[tuple[str, list[int]]]:
    """Each document once: its hash, and the hashes of its runs of words."""
    data = store.read(path, ["document", "runs"]).to_pylist()
    found: dict[str, list[int]] = {}
    for row in data:  # of a question's rows the first has its runs
        found.setdefault(row["document"], row["runs"])
    return list(found.items())


if __name__ == "__main__":
    with explained():
        job = CheckOverlap.read()
        used, tested = documents(job.samples), documents(job.documents)
        found = overlap.compare(used, tested)
        of = f"of its {len(used)} documents with the {len(tested)} test documents of benchmark '{job.task}'"
        remedy = "Calibrate on another split, or on documents that the benchmark does not use."
        if found.equal:
            raise LaminaError(
                f"calibrations.{job.calibration} shares {found.equal} {of}: a score on seen documents says nothing. "
                f"{remedy}"
            )
        if found.near > MOST * len(used):
            raise LaminaError(
                f"calibrations.{job.calibration} shares at least half of the text of {found.near} {of}, which is "
                f"more than {MOST:.0%}: they differ by a few words. {remedy}"
            )
        facts = {
            "calibration": job.calibration,
            "task": job.task,
            "documents": len(used),
            "tested": len(tested),
            "near": found.near,
            "sharing": found.sharing,
        }
        store.write_json(job.output, facts)

"""Refuse a calibration with documents of a benchmark; count those that share passages with one."""

from lamina_workflow.runtime.script import run_script

from lamina.data import overlap
from lamina.store import parquet
from lamina_workflow.stages.prepare import CheckOverlap

if __name__ == "__main__":
    with run_script(snakemake):
        job = CheckOverlap.read(snakemake)
        calibrated = overlap.read_overlap_documents(job.samples)
        tested = overlap.read_overlap_documents(job.documents)
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

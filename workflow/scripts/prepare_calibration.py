"""Tokenise a calibration for one model."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

import lamina_workflow.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.data import calibrations
from lamina.data.prepare import prepare_calibration
from lamina.store import checksum
from lamina_workflow.stages.prepare import PrepareCalibration

if __name__ == "__main__":
    with run_script(snakemake):
        job = PrepareCalibration.read(snakemake)
        manifest = checksum.read_json(job.manifest)
        calibration = prepare_calibration(
            job.calibration, job.entry, manifest, Path.cwd(), job.parts, job.answers
        )
        calibrations.write_calibration(job.output, calibration, job.provenance)

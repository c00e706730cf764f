"""Tokenise a calibration for one model."""

from pathlib import Path

import lamina_workflow.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.data import calibrations
from lamina.data.prepare import prepare
from lamina.store import checksum
from lamina_workflow.runtime.script import running
from lamina_workflow.stages.prepare import PrepareCalibration

if __name__ == "__main__":
    with running(snakemake):
        job = PrepareCalibration.read(snakemake)
        manifest = checksum.read_json(job.manifest)
        calibration = prepare(
            job.calibration, job.entry, manifest, Path.cwd(), job.parts, job.answers
        )
        calibrations.write(job.output, calibration)

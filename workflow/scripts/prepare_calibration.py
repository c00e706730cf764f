"""Tokenise a calibration for one model."""

import json
from pathlib import Path

from lamina.data import calibrations
from lamina.data.prepare import prepare
from lamina.errors import explained
from lamina.jobs.prepare_calibration import PrepareCalibration

if __name__ == "__main__":
    with explained():
        job = PrepareCalibration.read()
        manifest = json.loads(Path(job.manifest).read_text())
        calibrations.write(job.output, prepare(job.calibration, job.entry, manifest, Path.cwd(), job.parts))

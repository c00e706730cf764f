"""Tokenise a calibration for one model."""

from pathlib import Path

from lamina.data import calibrations
from lamina.data.prepare import prepare
from lamina.errors import explained
from lamina.stages.prepare_calibration import PrepareCalibration
from lamina.store import checksum as seal

if __name__ == "__main__":
    with explained():
        job = PrepareCalibration.read()
        manifest = seal.read_json(job.manifest)
        calibrations.write(job.output, prepare(job.calibration, job.entry, manifest, Path.cwd(), job.parts))

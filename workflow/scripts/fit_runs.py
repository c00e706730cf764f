"""Fit all repairs of a selector that one pass can serve: one model load, shared forward passes."""

from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.repair import fits, shared
from lamina.stages.fit_runs import FitRuns
from lamina.store import checksum as seal

if __name__ == "__main__":
    with explained():
        job = FitRuns.read()
        manifest, plans = seal.read_json(job.manifest), {file: seal.read_json(file) for file in job.plans}
        read = {name: calibrations.read(file) for name, file in ({job.own: job.calibration} | job.data).items()}
        fits.save(job.output, shared.by_key(job, load_model(manifest, check=job.check), plans, read))

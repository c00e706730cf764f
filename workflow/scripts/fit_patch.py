"""Fit one recovery for all plan sizes of a selector: one model load, shared forward passes."""

from lamina import seal
from lamina.data import calibrations
from lamina.errors import explained
from lamina.jobs.fit_patch import FitPatch
from lamina.models.load import load_model
from lamina.recovery import fitting, patch
from lamina.tables import store

if __name__ == "__main__":
    with explained():
        job = FitPatch.read()
        plans = [seal.read_json(file) for file in job.plans]
        plans = [plan for plan in plans if plan["units"]]
        tensors, rows, reasons = {}, [], {}
        if plans:
            files = {job.own: job.calibration} | job.data
            read = {name: calibrations.read(file) for name, file in files.items()}
            model = load_model(seal.read_json(job.manifest))
            tensors, rows, reasons = fitting.fitted(job, model, plans, read)
        patch.save(job.output, job.recovery.method, tensors, reasons)
        store.write(job.table, store.from_rows("patches", rows), job.provenance)

"""Compare the residual streams at all pairs of layer boundaries."""

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.engine import memory
from lamina.engine.capture import capture_similarities
from lamina.models.load import load_model
from lamina.store import checksum, parquet
from lamina_workflow.stages.capture import CaptureActivations

if __name__ == "__main__":
    with run_script(snakemake):
        job = CaptureActivations.read(snakemake)
        model = load_model(checksum.read_json(job.manifest), check=job.check)
        calibration = calibrations.read_calibration(job.calibration)
        token_budget = memory.choose_token_budget(job.tokens, model, calibration.samples)
        rows = capture_similarities(model, calibration.sequences(), token_budget)
        table = parquet.from_rows("activations", rows, **job.keys)
        parquet.write_table(job.output, table, job.provenance)

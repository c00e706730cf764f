"""Let the base model answer the questions of a calibration itself, once."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.evaluation.generation import answer_calibration
from lamina.models.load import load_model
from lamina.store import checksum
from lamina_workflow.stages.prepare import GenerateAnswers

if __name__ == "__main__":
    with run_script(snakemake):
        job = GenerateAnswers.read(snakemake)
        manifest = checksum.read_json(job.manifest)
        questions = calibrations.read_calibration(job.questions, runs=True)
        model = load_model(manifest, check=job.check)
        answered = answer_calibration(
            job.calibration, job.entry, questions, model, manifest, Path.cwd()
        )
        calibrations.write_calibration(job.output, answered, job.provenance)

"""Let the base model answer the questions of a calibration itself, once."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.data.encoding import open_encoder
from lamina.data.prepare import draw_tasks
from lamina.data.prompts import Style
from lamina.evaluation.generation import own_answers
from lamina.models.load import load_model, load_tokenizer
from lamina.store import checksum
from lamina_workflow.stages.prepare import GenerateAnswers

if __name__ == "__main__":
    with run_script(snakemake):
        job = GenerateAnswers.read(snakemake)
        manifest = checksum.read_json(job.manifest)
        questions = calibrations.read_calibration(job.questions, runs=True)
        model = load_model(manifest, check=job.check)
        tokenizer = load_tokenizer(manifest)
        lm = open_encoder(model, tokenizer)
        drawn_tasks = draw_tasks(job.calibration, job.entry, lm, Style.of(manifest), Path.cwd())
        tasks = [task for task, _ in drawn_tasks]
        answered = own_answers(job.entry, questions, tasks, model, tokenizer)
        calibrations.write_calibration(job.output, answered, job.provenance)

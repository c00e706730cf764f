"""Let the unpruned model answer the questions of a calibration itself, once."""

from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data import calibrations
from lamina.data.encoding import recorder
from lamina.data.prepare import drawn
from lamina.data.prompts import Style
from lamina.evaluation.generation import own_answers
from lamina.models.load import load_model, load_tokenizer
from lamina.runtime.script import running
from lamina.stages.prepare import GenerateAnswers
from lamina.store import checksum as seal

if __name__ == "__main__":
    with running(snakemake):
        job = GenerateAnswers.read(snakemake)
        manifest, questions = (
            seal.read_json(job.manifest),
            calibrations.read(job.questions, runs=True),
        )
        model, tokenizer = load_model(manifest, check=job.check), load_tokenizer(manifest)
        style, lm = Style.of(manifest), recorder(model, tokenizer)
        tasks = [task for task, _ in drawn(job.calibration, job.entry, lm, style, Path.cwd())]
        calibrations.write(job.output, own_answers(job.entry, questions, tasks, model, tokenizer))

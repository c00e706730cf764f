"""Models, samples to calibrate on and samples to judge by, for the comparison of repairs (`repair.py`)."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from cases import REFERENCE, ROOT
from lamina.jobs.changes import IN_LOOP
from lamina.streams.sources import Source
from lamina.sweep import engine
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lamina.config import repairs
from lamina.data import encoding, lm_tasks
from lamina.data.calibrations import Row, Sample
from lamina.data.documents import corpus_file, read_documents
from lamina.data.prepare import text_samples
from lamina.evaluation import perplexity

TASKS = ("addition", "sorting", "facts", "comparison")
CALIBRATION, DOCUMENTS, WINDOW = 300, 80, 128


@dataclass(frozen=True)
class Case:
    """A model with samples to calibrate on and samples to judge by.

    Attributes
    ----------
    general : samples of other text that repairs may be fitted on too; none where the own text is all there is.
    questions : test samples whose right answers are counted.
    texts : test samples of general text; empty where the questions are text themselves.
    """

    name: str
    model: PreTrainedModel
    seed: int
    calibration: list[Sample]
    general: list[Sample]
    questions: list[Sample]
    texts: list[Sample]

    @cached_property
    def depth(self) -> int:
        """L."""
        return engine.layer_count(self.model)

    @cached_property
    def metric(self) -> str:
        """What units are chosen by."""
        return "perplexity" if self.calibration[0].kind == "text" else "accuracy"

    def samples(self, name: str) -> list[Sample]:
        """What a name in the `data` of a repair stands for."""
        return {"own": self.calibration, "corpus": self.general}[name]

    def sources(self, options: repairs.Repair) -> list[Source]:
        """What a repair is fitted on."""
        return [
            Source([sample.sequence() for sample in self.samples(name)], weight)
            for name, weight in options.weights("own", IN_LOOP).items()
        ]


def embedded(tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[Case]:
    """The embedded model: 300 drawn validation samples of a task, all 600 test ones, 80 documents of general text."""
    model, tokenizer = loaded(REFERENCE)
    recorder = encoding.recorder(model, tokenizer)
    texts = windows(corpus("test")[:DOCUMENTS], tokenizer)
    for seed, name in itertools.product(seeds, tasks):
        drawn = random.Random(seed).sample(corpus("validation"), CALIBRATION)
        general = text_samples(drawn, tokenizer, WINDOW)
        task = f"microworld_{name}"
        calibration, questions = (
            lm_tasks.task_samples(lm_tasks.task_object(task, ROOT, split=split), recorder, limit, seed)
            for split, limit in (("validation", CALIBRATION), ("test", None))
        )
        yield Case(name, model, seed, calibration, general, questions, texts)


def on_disk(folder: Path, file: Path, seeds: Sequence[int]) -> Iterator[Case]:
    """A model and its kind of text: 300 samples drawn from the first half of the file, tested on the second half."""
    model, tokenizer = loaded(folder)
    documents = read_documents(file)
    half = len(documents) // 2
    questions = text_samples(documents[half:], tokenizer, WINDOW)
    for seed in seeds:
        drawn = random.Random(seed).sample(documents[:half], CALIBRATION)
        yield Case(folder.name, model, seed, text_samples(drawn, tokenizer, WINDOW), [], questions, [])


def loaded(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def corpus(split: str) -> list[str]:
    """General text of the microworld."""
    return read_documents(corpus_file("microworld_corpus", split, ROOT))


def windows(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Sample]:
    """Documents as the benchmark of perplexity cuts them, as samples; `document` is the document's number."""
    cut = perplexity.windows(documents, tokenizer, WINDOW)
    rows = (Row(one.tokens[: one.first], one.tokens[one.first :], 0) for one in cut)
    return [
        Sample(number, "text", 0, (row,), str(one.document))
        for number, (row, one) in enumerate(zip(rows, cut, strict=True))
    ]

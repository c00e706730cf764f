"""What the stages are run on: tiny models saved to disk, and inputs of every kind."""

import json
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.data import calibrations
from lamina.data.calibrations import CalibrationSamples, Row, Sample
from lamina.models.digests import describe_files
from lamina.models.load import load_model, load_tokenizer
from tests.given import tiny

DEPTH = 5
UNITS = [str(layer) for layer in range(DEPTH)]
SAMPLE_KINDS = ("choices", "choices", "text", "generated")


@dataclass(frozen=True)
class World:
    """A folder with models and questions, and the dtype that models are loaded in.

    folder: where models are, each in a folder named by its family (`donor` is a sibling of
        `llama`).
    scratch: where a stage may write.
    tokens: the token budget of one pass.
    """

    folder: Path
    scratch: Path
    dtype: str = "float32"
    family: str = "llama"
    tokens: int = 400

    def model(self, name: str | None = None) -> PreTrainedModel:
        """A model on the devices that there are, as jobs load it."""
        return load_model(self.manifest(name))

    def manifest(self, name: str | None = None) -> dict[str, Any]:
        """What a job knows of a model."""
        path = self.folder / (name or self.family)
        return {
            "path": str(path),
            "source": str(path),
            "revision": "main",
            "dtype": self.dtype,
            "trust_remote_code": False,
            "n_layers": DEPTH,
            "layer_parameters": 1,
            **describe_files(path),
        }

    def tokenizer(self) -> Any:
        """The same for all models."""
        return load_tokenizer(self.manifest())

    @cached_property
    def samples(self) -> list[Sample]:
        """Multiple choice whose rows share a context, text, and generated answers.

        Their lengths differ.
        """
        generator = random.Random(0)
        samples = []
        for index in range(10):
            kind = SAMPLE_KINDS[index % len(SAMPLE_KINDS)]
            n_rows = 3 if kind == "choices" else 1
            context = self._random_tokens(generator, 2, 12)
            rows = []
            for _ in range(n_rows):
                rows.append(Row(context, self._random_tokens(generator, 1, 4), 3))
            gold = generator.randrange(n_rows)
            samples.append(Sample(index, kind, gold, tuple(rows), str(index)))
        return samples

    @cached_property
    def texts(self) -> list[tuple[int, ...]]:
        """Token sequences of different lengths."""
        generator = random.Random(1)
        return [self._random_tokens(generator, 6, 18) for _ in range(10)]

    @cached_property
    def calibration(self) -> CalibrationSamples:
        """The samples as a calibration."""
        return calibrations.build_calibration(self.samples, tiny.VOCABULARY)

    def questions(self) -> Path:
        """A file of questions with choices, as users write it."""
        path = self.folder / "questions.jsonl"
        if path.exists():
            return path
        generator = random.Random(2)
        lines = []
        for _ in range(12):
            query = generator.choices(tiny.WORDS, k=generator.randint(3, 9))
            choices = generator.sample(tiny.WORDS, 3)
            gold = generator.randrange(3)
            lines.append(json.dumps({"query": " ".join(query), "choices": choices, "gold": gold}))
        path.write_text("\n".join(lines))
        return path

    @staticmethod
    def _random_tokens(generator: random.Random, low: int, high: int) -> tuple[int, ...]:
        length = generator.randint(low, high)
        return tuple(generator.randrange(4, tiny.VOCABULARY) for _ in range(length))


def save_models(folder: Path) -> Path:
    """Write the models into a folder."""
    models = {
        "llama": tiny.model("llama"),
        "donor": tiny.model("llama", seed=1),
        "gpt2": tiny.model("gpt2"),
        "bloom": tiny.model("bloom"),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    return folder

"""What the stages are run on: tiny models saved to disk, and the inputs of every kind."""

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


@dataclass(frozen=True)
class World:
    """A folder with models and questions, and the dtype that models are loaded in.

    folder: where models stand, each in a folder named by its family (`donor` is a sibling of `llama`).
    scratch: where a stage may write.
    tokens: the budget of one pass.
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
        path = str(self.folder / (name or self.family))
        known = {
            "source": path,
            "revision": "main",
            "n_layers": DEPTH,
            **describe_files(Path(path)),
        }
        return {
            "path": path,
            "dtype": self.dtype,
            "trust_remote_code": False,
            "layer_parameters": 1,
            **known,
        }

    def tokenizer(self) -> Any:
        """Of all of the models."""
        return load_tokenizer(self.manifest())

    @cached_property
    def samples(self) -> list[Sample]:
        """Multiple choice whose rows share a context, text, and generated answers, of different lengths."""
        draw, found = random.Random(0), []
        for index in range(10):
            kind = ("choices", "choices", "text", "generated")[index % 4]
            context = self._words(draw, 2, 12)
            rows = [
                Row(context, self._words(draw, 1, 4), 3)
                for _ in range(3 if kind == "choices" else 1)
            ]
            found.append(Sample(index, kind, draw.randrange(len(rows)), tuple(rows), str(index)))
        return found

    @cached_property
    def texts(self) -> list[tuple[int, ...]]:
        """Sequences of different lengths."""
        draw = random.Random(1)
        return [self._words(draw, 6, 18) for _ in range(10)]

    @cached_property
    def calibration(self) -> CalibrationSamples:
        """The samples as a calibration."""
        return calibrations.build_calibration(self.samples, tiny.VOCABULARY)

    def questions(self) -> Path:
        """A file of questions with choices, as users write it."""
        draw, path = random.Random(2), self.folder / "questions.jsonl"
        if not path.exists():
            lines = []
            for _ in range(12):
                query, choices = (
                    draw.choices(tiny.WORDS, k=draw.randint(3, 9)),
                    draw.sample(tiny.WORDS, 3),
                )
                lines.append(
                    json.dumps(
                        {"query": " ".join(query), "choices": choices, "gold": draw.randrange(3)}
                    )
                )
            path.write_text("\n".join(lines))
        return path

    @staticmethod
    def _words(draw: random.Random, low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, tiny.VOCABULARY) for _ in range(draw.randint(low, high)))


def saved(folder: Path) -> Path:
    """Write the models into a folder."""
    for name in ("llama", "donor", "gpt2", "bloom"):
        model = tiny.model("llama", seed=1) if name == "donor" else tiny.model(name)
        model.save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    return folder

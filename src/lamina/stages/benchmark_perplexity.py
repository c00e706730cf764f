"""Rule benchmark_perplexity: measure one perplexity on many variants of one model."""

from typing import Any, Self

from lamina.config.benchmarks import Perplexity
from lamina.config.configuration import Configuration
from lamina.stages import files
from lamina.stages.benchmark_task import BenchmarkTask, block
from lamina.stages.job import Told
from lamina.stages.measuring import Measuring


class BenchmarkPerplexity(Measuring):
    """One text by its name, on the variants of one block."""

    OUTPUTS = BenchmarkTask.OUTPUTS

    name: str
    text: Told[Perplexity]
    output: str
    samples: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(text=config.benchmarks.perplexity[w.task], **block(config, w), **cls.written(w))

    @property
    def sources(self) -> tuple[str, ...]:
        return (*super().sources, *files.local(self.name, self.text))

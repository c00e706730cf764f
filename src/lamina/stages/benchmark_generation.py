"""Rule benchmark_generation: measure the answers that many variants of one model write to one lm-eval task."""

from typing import Any, Self

from lamina.config.benchmarks import Generate, Task
from lamina.config.configuration import Configuration
from lamina.stages import files
from lamina.stages.benchmark_task import block
from lamina.stages.job import Told
from lamina.stages.measuring import Measuring
from lamina.study import paths


class BenchmarkGeneration(Measuring):
    """One task by its name, and how answers to it are written, on the variants of one block."""

    OUTPUTS = {
        "output": paths.generation("{model}", "{calibration}", "{task}", "{block}"),
        "samples": paths.generation_samples("{model}", "{calibration}", "{task}", "{block}"),
    }

    name: str
    task: Told[Task]
    generate: Told[Generate]
    output: str
    samples: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        task = config.benchmarks.tasks[w.task]
        return cls(task=task, generate=task.generate or Generate(), **block(config, w), **cls.written(w))

    @property
    def sources(self) -> tuple[str, ...]:
        return (*super().sources, *files.local(self.name, self.task))

"""Rule benchmark_task: score one lm-eval task or group of tasks on many variants of one model."""

from typing import Any, Self

from lamina.config.benchmarks import Task
from lamina.config.configuration import Configuration
from lamina.stages import files
from lamina.stages.job import Told
from lamina.stages.measuring import Measuring, measured
from lamina.study import paths
from lamina.study import requests as studies


class BenchmarkTask(Measuring):
    """One task by its name, on the variants of one block."""

    OUTPUTS = {
        "output": paths.benchmark("{model}", "{calibration}", "{task}", "{block}"),
        "samples": paths.benchmark_samples("{model}", "{calibration}", "{task}", "{block}"),
    }

    name: str
    task: Told[Task]
    output: str
    samples: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(task=config.benchmarks.tasks[w.task], **block(config, w), **cls.written(w))

    @property
    def sources(self) -> tuple[str, ...]:
        return (*super().sources, *files.local(self.name, self.task))


def block(config: Configuration, w: Any) -> dict[str, Any]:
    """The fields of a job that measures one block of variants on a task or text."""
    variants = studies.block_variants(config, w.model, w.calibration, w.task, int(w.block))
    gate = files.gates(config, w.model, w.calibration, w.task, variants)
    return {"name": w.task, "gate": gate, **measured(config, w.model, variants)}

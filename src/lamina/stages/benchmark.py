"""Jobs of rules/benchmark.smk: what is measured on the variants of a model, and on the unpruned model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from lamina.config.benchmarks import Efficiency, Generate, Perplexity, Task
from lamina.config.configuration import Configuration
from lamina.stages.changes import repair_modules
from lamina.stages.job import READ, WRITTEN, OnModel, Options, family, minutes
from lamina.study import requests as studies
from lamina.study.variant import Variant


class Measuring(OnModel):
    """Variants of one model, as text, and the files that they are made of.

    `repairs` are the modules of their repairs, which build the models.
    """

    variants: list[str]
    repairs: list[str] = []
    made_of: Annotated[list[str], READ] = []

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self.repairs)

    def minutes(self, model: Mapping[str, Any], attempt: int) -> int:
        """As for any job; measuring takes longer with more variants."""
        return minutes(model, attempt, len(self.variants))


class BenchmarkTask(Measuring):
    """One task by its name, on the variants of one block."""

    name: str
    task: Options[Task]
    output: Annotated[str, WRITTEN] = ""
    samples: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(task=config.benchmarks.tasks[w.task], **_block(config, w))


class BenchmarkGeneration(Measuring):
    """One task by its name, and how answers to it are written, on the variants of one block."""

    name: str
    task: Options[Task]
    generate: Options[Generate]
    output: Annotated[str, WRITTEN] = ""
    samples: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        task = config.benchmarks.tasks[w.task]
        return cls(task=task, generate=task.generate or Generate(), **_block(config, w))


class BenchmarkPerplexity(Measuring):
    """One text by its name, on the variants of one block."""

    name: str
    text: Options[Perplexity]
    output: Annotated[str, WRITTEN] = ""
    samples: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(text=config.benchmarks.perplexity[w.task], **_block(config, w))


class BenchmarkEfficiency(Measuring):
    """All variants of one model. The first of each cost is timed; `structures` is the largest number of those."""

    ASIDE = ("structures",)

    efficiency: Options[Efficiency]
    structures: int
    output: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variants = studies.efficiency_variants(config, w.model)
        return cls(
            efficiency=config.benchmarks.efficiency or Efficiency(),
            structures=studies.structures(config, w.model),
            **_measured(config, w.model, variants),
        )

    def minutes(self, model: Mapping[str, Any], attempt: int) -> int:
        """Time limit of a job that measures fewer variants than it reads the files of."""
        return minutes(model, attempt, self.structures)


def _block(config: Configuration, w: Any) -> dict[str, Any]:
    variants = studies.block_variants(config, w.model, w.calibration, w.task, int(w.block))
    return {"name": w.task, **_measured(config, w.model, variants)}


def _measured(config: Configuration, model: str, variants: Sequence[Variant]) -> dict[str, Any]:
    return {
        "variants": [str(variant) for variant in variants],
        "repairs": repair_modules(config, [variant.repair for variant in variants]),
        "follows": family(config, model),
    }

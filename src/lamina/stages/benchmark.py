"""Jobs of rules/benchmark.smk: what is measured on the variants of a model, and on the unpruned model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from lamina.config.benchmarks import Efficiency, Generate, Perplexity, Task
from lamina.config.configuration import Configuration
from lamina.config.entry import Options
from lamina.stages.changes import repair_modules
from lamina.stages.job import READ, WRITTEN, OnModel, family, minutes
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


class Block(Measuring):
    """One task or text by its name, on the variants of one block."""

    name: str
    samples: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variants = studies.block_variants(config, w.model, w.calibration, w.task, int(w.block))
        task, text = config.benchmarks.tasks.get(w.task), config.benchmarks.perplexity.get(w.task)
        entries: dict[str, Any] = {
            "task": task,
            "generate": task and (task.generate or Generate()),
            "text": text,
        }
        asked = {key: entry for key, entry in entries.items() if key in cls.model_fields}
        return cls(name=w.task, **asked, **_measured(config, w.model, variants))


class BenchmarkTask(Block):
    """One task, on the variants of one block."""

    task: Options[Task]


class BenchmarkGeneration(Block):
    """One task and how answers to it are written, on the variants of one block."""

    task: Options[Task]
    generate: Options[Generate]


class BenchmarkPerplexity(Block):
    """One text, on the variants of one block."""

    text: Options[Perplexity]


class BenchmarkEfficiency(Measuring):
    """All variants of one model. The first of each cost is timed; `structures` is the largest number of those."""

    ASIDE = ("structures",)

    efficiency: Options[Efficiency]
    structures: int

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


def _measured(config: Configuration, model: str, variants: Sequence[Variant]) -> dict[str, Any]:
    return {
        "variants": [str(variant) for variant in variants],
        "repairs": repair_modules(config, [variant.repair for variant in variants]),
        "follows": family(config, model),
    }

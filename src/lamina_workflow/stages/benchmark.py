"""Jobs of rules/benchmark.smk: measurements on the variants of a model and on the base model."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from lamina.options.benchmarks import Efficiency, Generate, PerplexityEntry, TaskEntry
from lamina.options.entry import Options
from lamina.paths import VariantFiles
from lamina.variant import Variant
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages.changes import repair_modules
from lamina_workflow.stages.job import READ, WRITTEN, OnModel, follow_family, time_limit
from lamina_workflow.study import requests

if TYPE_CHECKING:
    from lamina.evaluation.measuring import Unfinished

Rows = list[dict[str, Any]]


class Measuring(OnModel):
    """Variants of one model, as text, and the files that make them, in the same order.

    `repairs` are the modules of their repairs, which build the models.
    """

    variants: list[str]
    repairs: list[str] = []
    made_of: Annotated[list[str], READ] = []

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self.repairs)

    def files_by_variant(self) -> dict[Variant, VariantFiles]:
        """The files of each variant; the rule lists them variant by variant."""
        files = iter(self.made_of)
        variants = [Variant.parse(text) for text in self.variants]
        return {variant: VariantFiles.take(variant, files) for variant in variants}

    def minutes(self, model: Mapping[str, Any], attempt: int) -> int:
        """Time limit, which grows with the number of variants."""
        return time_limit(model, attempt, len(self.variants))


class BenchmarkBlock(Measuring):
    """One task or text by its name, on the variants of one block."""

    name: str
    samples: Annotated[str, WRITTEN] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variants = requests.block_variants(config, w.model, w.calibration, w.task, int(w.block))
        return cls(
            name=w.task,
            **cls._entries(config, w.task),
            **_variant_options(config, w.model, variants),
        )

    @classmethod
    def _entries(cls, config: Configuration, name: str) -> dict[str, Any]:
        """The configuration's entries about what is measured, by the names of fields."""
        return {}

    def write(self, measure_block: Callable[[Self, "Unfinished"], tuple[Rows, Rows]]) -> None:
        """Measure the block, if it has variants, and write its tables.

        measure_block: Returns the rows of tables `benchmarks` and `benchmark_samples`.
        """
        # Rules import this module, and these import torch and pyarrow.
        from lamina.evaluation.measuring import Unfinished
        from lamina.store import parquet

        unfinished = Unfinished(f"{self.output}.unfinished", self.origin)
        rows: Rows = []
        samples: Rows = []
        if self.variants:
            rows, samples = measure_block(self, unfinished)
        parquet.write_table(
            self.samples, parquet.from_rows("benchmark_samples", samples), self.provenance
        )
        parquet.write_table(self.output, parquet.from_rows("benchmarks", rows), self.provenance)
        unfinished.remove()


class BenchmarkTask(BenchmarkBlock):
    """One task on the variants of one block."""

    task: Options[TaskEntry]

    @classmethod
    def _entries(cls, config: Configuration, name: str) -> dict[str, Any]:
        return {"task": config.benchmarks.tasks[name]}


class BenchmarkGeneration(BenchmarkBlock):
    """One task, with how answers to it are written, on the variants of one block."""

    task: Options[TaskEntry]
    generate: Options[Generate]

    @classmethod
    def _entries(cls, config: Configuration, name: str) -> dict[str, Any]:
        task = config.benchmarks.tasks[name]
        return {"task": task, "generate": task.generate or Generate()}


class BenchmarkPerplexity(BenchmarkBlock):
    """One text on the variants of one block."""

    text: Options[PerplexityEntry]
    documents: Annotated[str, READ] = ""

    @classmethod
    def _entries(cls, config: Configuration, name: str) -> dict[str, Any]:
        return {"text": config.benchmarks.perplexity[name]}


class BenchmarkEfficiency(Measuring):
    """All variants of one model; of variants with the same cost, only the first is timed.

    `structures` is the largest possible number of different costs.
    """

    ASIDE = ("structures",)

    efficiency: Options[Efficiency]
    structures: int

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variants = requests.efficiency_variants(config, w.model)
        return cls(
            efficiency=config.benchmarks.efficiency or Efficiency(),
            structures=requests.count_structures(config, w.model),
            **_variant_options(config, w.model, variants),
        )

    def minutes(self, model: Mapping[str, Any], attempt: int) -> int:
        """Time limit; the job measures fewer variants than it reads files of."""
        return time_limit(model, attempt, self.structures)


def _variant_options(
    config: Configuration, model: str, variants: Sequence[Variant]
) -> dict[str, Any]:
    """The fields of `Measuring` that the configuration determines."""
    return {
        "variants": [str(variant) for variant in variants],
        "repairs": repair_modules(config, [variant.repair for variant in variants]),
        "follows": follow_family(config, model),
    }

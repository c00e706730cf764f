"""Rule benchmark_drafts: measure the variants of a model as drafts of it, in turn with the model alone."""

from typing import Any, Self

from lamina.config.benchmarks import Drafts, Perplexity
from lamina.config.configuration import Configuration
from lamina.stages import files
from lamina.stages.job import Told
from lamina.stages.measuring import Measuring, measured
from lamina.study import paths
from lamina.study import requests as studies


class BenchmarkDrafts(Measuring):
    """All variants of one model that are small enough, and the text whose beginnings are the prompts."""

    OUTPUTS = {"output": paths.drafts("{model}")}

    drafts: Told[Drafts]
    text: Told[Perplexity]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry, variants = config.benchmarks.drafts, studies.draft_variants(config, w.model)
        assert entry is not None
        return cls(
            drafts=entry.model_copy(update={"removed": 1}),  # the field `variants` says which there are
            text=config.benchmarks.perplexity[entry.text],
            gate=files.draft_gates(config, w.model),
            **measured(config, w.model, variants),
            **cls.written(w),
        )

    @property
    def sources(self) -> tuple[str, ...]:
        return (*super().sources, *files.local(self.drafts.text, self.text))

"""Rule check_model: prove once that the engine does to a model what cutting its layers would do."""

from typing import Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import OnModel, family
from lamina.study import paths


class CheckModel(OnModel):
    """One model; `tokens` is the budget of one pass."""

    OUTPUTS = {"output": paths.check("{model}")}

    tokens: int | str
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            manifest=paths.manifest(w.model),
            tokens=config.sweep.tokens,
            follows=family(config, w.model),
            **cls.written(w),
        )

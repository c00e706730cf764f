"""Rule dequantise_model: write the model in a GGUF file as an ordinary checkpoint."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import READ, Job
from lamina.study import paths


class DequantiseModel(Job):
    """One model by its name, its file, and the number format of the weights that are written (auto for float32)."""

    OUTPUTS = {"output": paths.checkpoint("{model}")}
    PACKAGES = True

    model: str
    file: Annotated[str, READ]
    dtype: str
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.models[w.model]
        return cls(model=w.model, file=entry.source, dtype=entry.dtype, **cls.written(w))

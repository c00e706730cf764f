"""Rule capture_activations: compare the residual streams at all pairs of layer boundaries."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import READ, OnModel, family
from lamina.study import paths


class CaptureActivations(OnModel):
    """One calibration; `tokens` is the budget of one pass."""

    OUTPUTS = {"output": paths.activations("{model}", "{calibration}")}

    calibration: Annotated[str, READ]
    tokens: int | str
    keys: dict[str, str]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            manifest=paths.manifest(w.model),
            check=paths.check(w.model),
            calibration=paths.calibration(w.model, w.calibration),
            tokens=config.sweep.tokens,
            keys={"model": w.model, "calibration": w.calibration},
            follows=family(config, w.model),
            **cls.written(w),
        )

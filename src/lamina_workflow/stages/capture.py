"""Jobs of rules/capture.smk: what the layers of the base model do. Nothing is removed."""

from typing import Annotated, Any, Self

from lamina.options.entry import Options
from lamina_workflow.config.configuration import Configuration, Diagnosis
from lamina_workflow.stages.job import READ, OnModel, follow_family


class CaptureActivations(OnModel):
    """One calibration; `tokens` is the budget of one pass."""

    tokens: int | str
    keys: dict[str, str]
    calibration: Annotated[str, READ] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        keys = {"model": w.model, "calibration": w.calibration}
        return cls(tokens=config.sweep.tokens, keys=keys, follows=follow_family(config, w.model))


class DiagnoseLayers(OnModel):
    """One diagnosis, measured on `samples`: a calibration, or the file that its entry names."""

    diagnosis: Options[Diagnosis]
    tokens: int | str
    keys: dict[str, str]
    samples: Annotated[str, READ] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.diagnoses[w.diagnosis]
        keys = {
            "model": w.model,
            "calibration": w.calibration,
            "diagnosis": w.diagnosis,
            "kind": entry.kind,
        }
        return cls(
            diagnosis=entry,
            tokens=config.sweep.tokens,
            keys=keys,
            follows=follow_family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return (f"lamina.diagnosis.{self.diagnosis.kind}",)

"""Rule diagnose_layers: measure what the layers of an unpruned model do, with nothing removed."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.diagnoses import Diagnosis
from lamina.stages.job import READ, OnModel, Told, family
from lamina.study import paths


class DiagnoseLayers(OnModel):
    """One diagnosis, measured on what is `given`: a calibration, or the file that its entry names."""

    OUTPUTS = {"output": paths.diagnosis("{model}", "{calibration}", "{diagnosis}")}

    given: Annotated[str, READ]
    diagnosis: Told[Diagnosis]
    tokens: int | str
    keys: dict[str, str]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.diagnoses[w.diagnosis]
        keys = {"model": w.model, "calibration": w.calibration, "diagnosis": w.diagnosis, "kind": entry.kind}
        return cls(
            manifest=paths.manifest(w.model),
            check=paths.check(w.model),
            given=getattr(entry, "file", None) or paths.calibration(w.model, w.calibration),
            diagnosis=entry,
            tokens=config.sweep.tokens,
            keys=keys,
            follows=family(config, w.model),
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return (f"lamina.diagnosis.{self.diagnosis.kind}",)

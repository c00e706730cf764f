"""Rule prepare_calibration: tokenise a calibration for one model."""

from typing import Annotated, Any, Self

from lamina.config.calibrations import Calibration
from lamina.config.configuration import Configuration
from lamina.stages import files
from lamina.stages.job import READ, Job, Told
from lamina.study import paths


class PrepareCalibration(Job):
    """One calibration, by its name and its entry; `parts` are the entries that a mixture is made of."""

    OUTPUTS = {"output": paths.calibration("{model}", "{calibration}")}
    PACKAGES = True

    calibration: str
    entry: Told[Calibration]
    parts: dict[str, Told[Calibration]] = {}
    manifest: Annotated[str, READ]
    files: Annotated[list[str], READ] = []
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry, parts = config.calibrations[w.calibration], config.parts(w.calibration)
        return cls(
            calibration=w.calibration,
            entry=entry,
            parts={} if w.calibration in parts else parts,
            manifest=paths.manifest(w.model),
            files=[file for part in parts.values() for name in part.drawn or [""] for file in files.local(name, part)],
            **cls.written(w),
        )

"""Rule export_variant: write one variant as a Hugging Face checkpoint with its tokenizer, card and recipe."""

from pathlib import Path
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages import exports, files
from lamina.stages.job import READ, Job, family
from lamina.study import paths
from lamina.study import requests as studies
from lamina.study.variant import Variant


class ExportVariant(Job):
    """One variant, as text. Its card shows the `benchmarks` that exist; the export starts none.

    `form` is one of `lamina.study.variant.EXPORTED_AS`, `shard` the largest weights file, such as 5GB.
    """

    OUTPUTS = {"output": paths.export(f"{paths.KEY}/removed={{removed}}/{{repair}}/{{healing}}")}
    PACKAGES = True

    variant: str
    form: str
    shard: str
    manifest: Annotated[str, READ]
    plan: Annotated[str | None, READ] = None
    patch: Annotated[str | None, READ] = None
    adapter: Annotated[list[str], READ] = []
    benchmarks: Annotated[list[str], READ] = []
    repairs: list[str] = []
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variant = Variant.of({**w, "removed": int(w.removed)})
        exports.check(config, variant)
        made = paths.variant_files(variant)
        measured = [
            paths.benchmark(*block)
            for block in studies.benchmark_blocks(config)
            if block[0] == variant.model and block[1] in (variant.calibration, "none")
        ]
        return cls(
            variant=str(variant),
            form=w.form,
            shard=w.shard,
            manifest=paths.manifest(variant.model),
            plan=made.plan,
            patch=made.patch,
            adapter=paths.adapter_weights(made.adapter) if made.adapter else [],
            benchmarks=[file for file in measured if Path(file).exists()],
            repairs=files.repairs(config, [w.repair]),
            follows=family(config, w.model),
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self.repairs)

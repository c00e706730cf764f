"""Rule gather_sweep: put the blocks of one sweep together."""

import hashlib
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.described import Place
from lamina.stages.job import READ, Job
from lamina.stages.sweep_units import SweepUnits
from lamina.study import paths
from lamina.study import requests as studies


class GatherSweep(Job):
    """The files of a sweep's jobs, in their order."""

    OUTPUTS = {"output": paths.sweep(paths.KEY, "{removed}")}

    blocks: Annotated[list[str], READ]
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        numbers = range(studies.sweep_blocks(config, w.model, w.selector))
        key = paths.KEY.format(**w)
        blocks = [paths.sweep_block(key, w.removed, block) for block in numbers]
        # The blocks are temporary, so the whole sweep follows what they were told.
        text = SweepUnits.of(config, Place({**w, "block": "0"})).told()
        return cls(blocks=blocks, follows={"block": hashlib.sha256(text.encode()).hexdigest()}, **cls.written(w))

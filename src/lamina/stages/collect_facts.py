"""Rule collect_facts: write the facts of a run that change from run to run: versions, commit, machine, wall time."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.stages.job import READ, Job
from lamina.study import paths


class CollectFacts(Job):
    """`files` are the configuration files of the run; `started` is a file that was touched when the run began."""

    OUTPUTS = {"output": "results/facts.json"}

    jobs: Annotated[str, READ]
    seed: int
    files: str
    started: str
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        facts = {"files": w.files, "started": w.started}
        return cls(jobs=paths.table("jobs"), seed=config.seed, **facts, **cls.written(w))

    @property
    def described_by(self) -> tuple[str, ...]:
        return ("lamina.version",)

"""Rule prepare_task: hash the documents that a benchmark scores, for the check of calibrations against it."""

from typing import Annotated, Any, Self

from lamina.config.benchmarks import Perplexity, Task
from lamina.config.configuration import Configuration
from lamina.stages import files
from lamina.stages.job import READ, Job, Told
from lamina.study import paths


class PrepareTask(Job):
    """One benchmark by its name: a task or the text of a perplexity; the other is None."""

    OUTPUTS = {"output": paths.task("{task}")}

    name: str
    task: Told[Task] | None = None
    text: Told[Perplexity] | None = None
    files: Annotated[list[str], READ] = []
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = files.tested(config, w.task)
        benchmark = {"task" if isinstance(entry, Task) else "text": entry}
        return cls(name=w.task, files=files.local(w.task, entry), **benchmark, **cls.written(w))

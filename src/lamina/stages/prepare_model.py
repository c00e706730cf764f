"""Rule prepare_model: find a model, check what it is, and write its manifest."""

from pathlib import Path
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.models import Model
from lamina.models import checksum
from lamina.models.gguf import is_gguf
from lamina.models.manifest import fingerprint
from lamina.stages.job import READ, Job, Told
from lamina.study import paths


class PrepareModel(Job):
    """One model, by its name and its entry, without the number of devices of its jobs.

    `folder` is its checkpoint, if its source is a file in another format.
    """

    OUTPUTS = {"output": paths.manifest("{model}")}

    model: str
    entry: Told[Model]
    folder: Annotated[str | None, READ] = None
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.models[w.model]
        # Another time of the weights changes nothing, an edit does.
        follows = {"weights": fingerprint(Path(entry.source))}
        return cls(
            model=w.model,
            entry=entry.model_copy(update={"devices": 1}),
            folder=paths.checkpoint(w.model) if is_gguf(entry.source) else None,
            follows=follows,
            **cls.written(w),
        )

    @property
    def inputs(self) -> dict[str, Any]:
        """Also the files of a local model, so that a newer one makes the manifest stale."""
        folder = Path(self.entry.source)
        found = [path for paths in checksum.files(folder) for path in paths] if folder.is_dir() else []
        return super().inputs | ({"files": [str(path) for path in found]} if found else {})

    @property
    def sources(self) -> tuple[str, ...]:
        """None: `follows` has a fingerprint of a model's files, which are too large to be hashed at each start."""
        return ()

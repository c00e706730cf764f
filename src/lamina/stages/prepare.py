"""Jobs of rules/prepare.smk: models, calibrations, tasks, what they have in common, and what a study will cost."""

from pathlib import Path
from typing import Annotated, Any, Self

from lamina.config.benchmarks import Perplexity, Task
from lamina.config.calibrations import Calibration, corpus_file
from lamina.config.configuration import Configuration
from lamina.config.entry import Options
from lamina.config.metrics import METRICS
from lamina.config.models import Model
from lamina.data import task_files
from lamina.models import gguf
from lamina.models.checkpoint import is_quantised
from lamina.models.digests import checkpoint_name, fingerprint, list_files
from lamina.stages.job import READ, Job, OnModel, family
from lamina.study import requests as studies


class DequantiseModel(Job):
    """One checkpoint by its name, which says what it is made from, and its number format (auto: float32 of a GGUF)."""

    PACKAGES = True

    dtype: str
    files: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(dtype=_quantised_model(config, w.checkpoint).dtype)


class PrepareModel(Job):
    """One model, by its name and its entry, without the number of devices of its jobs.

    `checkpoint` is its folder, if its source is a file in another format.
    """

    model: str
    entry: Options[Model]
    checkpoint: Annotated[str | None, READ] = None

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.models[w.model]
        # Another time of the weights changes nothing, an edit does.
        follows = {"weights": fingerprint(Path(entry.source))}
        return cls(model=w.model, entry=entry.model_copy(update={"devices": 1}), follows=follows)


class CheckModel(OnModel):
    """One model; `tokens` is the budget of one pass."""

    tokens: int | str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(tokens=config.sweep.tokens, follows=family(config, w.model))


class PrepareCalibration(Job):
    """One calibration, by its name and its entry; `parts` are the entries that a mixture is made of."""

    PACKAGES = True

    calibration: str
    entry: Options[Calibration]
    parts: dict[str, Options[Calibration]] = {}
    manifest: Annotated[str, READ] = ""
    answers: Annotated[dict[str, str], READ] = {}

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry, parts = config.calibrations[w.calibration], config.parts(w.calibration)
        return cls(
            calibration=w.calibration, entry=entry, parts={} if w.calibration in parts else parts
        )


class GenerateAnswers(OnModel):
    """One calibration, by its name and its entry, whose questions the model answers itself."""

    calibration: str
    entry: Options[Calibration]
    questions: Annotated[str, READ] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        follows = family(config, w.model)
        return cls(
            calibration=w.calibration, entry=config.calibrations[w.calibration], follows=follows
        )


class PrepareTask(Job):
    """One benchmark by its name: a task or the text of a perplexity; the other is None."""

    name: str
    task: Options[Task] | None = None
    text: Options[Perplexity] | None = None

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = benchmark(config, w.task)
        return cls(name=w.task, **{"task" if isinstance(entry, Task) else "text": entry})


class CheckOverlap(Job):
    """One calibration against one benchmark."""

    calibration: str
    task: str
    samples: Annotated[str, READ] = ""
    documents: Annotated[str, READ] = ""


class EstimateCost(Job):
    """The whole configuration, with all defaults; `strategies` are those of its searches, which are rehearsed."""

    FOLLOWED = ("lamina.study.sweeps",)  # the studies decide what is counted

    config: dict[str, Any]
    strategies: list[str] = []
    manifests: Annotated[list[str], READ] = []
    calibrations: Annotated[list[str], READ] = []
    tasks: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        searching = [config.selectors[name] for _, _, name in studies.searches(config)]
        named = {name for each in searching for name in (each.strategy, *each.members)}
        return cls(config=config.plain(), strategies=sorted(named - METRICS.keys()))

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(f"lamina.selection.strategies.{strategy}" for strategy in self.strategies)


def benchmark(config: Configuration, task: str) -> Any:
    """The entry of a benchmark, which is a task or a perplexity text."""
    benchmarks = config.benchmarks
    return benchmarks.tasks[task] if task in benchmarks.tasks else benchmarks.perplexity[task]


def checkpoint_names(config: Configuration) -> dict[str, str]:
    """The names of the checkpoints that quantised models become, by model. Models of the same content share one."""
    return {
        name: checkpoint_name(entry.source, entry.dtype)
        for name, entry in config.models.items()
        if is_quantised(entry.source)
    }


def _quantised_model(config: Configuration, checkpoint: str) -> Model:
    """The entry of a model that becomes the checkpoint of this name."""
    return next(
        config.models[model]
        for model, name in checkpoint_names(config).items()
        if name == checkpoint
    )


def quantised_files(config: Configuration, checkpoint: str) -> list[str]:
    """The files that a checkpoint is made from, the one that names the model first.

    That is the GGUF file, or the config.json that says how the weights beside it are quantised.
    """
    model = _quantised_model(config, checkpoint)
    if gguf.is_gguf(model.source):
        return gguf_files(model)
    folder = Path(model.source)
    first = folder / "config.json"
    others = [path for paths in list_files(folder) for path in paths if path != first]
    return [str(path) for path in (first, *others)]


def gguf_files(model: Model) -> list[str]:
    """The GGUF file of a model, or its shards."""
    return [str(file) for file in gguf.shard_files(Path(model.source))]


def model_files(config: Configuration, model: str) -> list[str]:
    """The files of a local model, so that a newer one makes its manifest stale; none of a model on the hub."""
    folder = Path(config.models[model].source)
    return [str(path) for paths in list_files(folder) for path in paths] if folder.is_dir() else []


def data_files(name: str, entry: Any) -> list[str]:
    """Local files behind a task, a text or a file of questions."""
    if choices := getattr(entry, "choices", None):
        return [choices]
    if hub := getattr(entry, "hub", None):
        return sorted(str(file) for file in Path(hub).rglob("*") if file.is_file())
    if text := getattr(entry, "text", None):
        return [corpus_file(text, getattr(entry, "split", None))]
    return task_files.files(name)


def calibration_files(config: Configuration, calibration: str) -> list[str]:
    """Local files that a calibration is drawn from, also those of the parts of a mixture."""
    parts = config.parts(calibration).values()
    return [
        file for part in parts for name in part.drawn or [""] for file in data_files(name, part)
    ]

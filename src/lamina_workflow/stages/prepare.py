"""Jobs of rules/prepare.smk: models, calibrations, tasks, their overlap, the forecast cost."""

from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self

from lamina.data import task_files
from lamina.models import gguf
from lamina.models.checkpoint import is_quantised
from lamina.models.digests import checkpoint_name, fingerprint_model, list_files
from lamina.options.benchmarks import PerplexityEntry, TaskEntry
from lamina.options.calibrations import Calibration, corpus_file
from lamina.options.entry import Options
from lamina.options.metrics import METRICS
from lamina.options.models import Model
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages.job import READ, Job, OnModel, follow_family
from lamina_workflow.study import requests


class DequantiseModel(Job):
    """One checkpoint, named by a hash of the files that it is made from.

    `dtype` is the number format of the checkpoint; `auto` stores quantised numbers in bfloat16.
    """

    PACKAGES = True

    dtype: str
    files: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(dtype=_quantised_model(config, w.checkpoint).dtype)


class PrepareModel(Job):
    """One model, by its name and its entry; the number of devices of its jobs does not count.

    `checkpoint` is its folder, if its source is a file in another format.
    """

    model: str
    entry: Options[Model]
    checkpoint: Annotated[str | None, READ] = None

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = config.models[w.model]
        return cls(
            model=w.model,
            entry=entry.model_copy(update={"devices": 1}),
            # A changed time of the weights changes nothing; an edit does.
            follows={"weights": fingerprint_model(Path(entry.source))},
        )


class CheckModel(OnModel):
    """One model."""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(follows=follow_family(config, w.model))


class PrepareCalibration(Job):
    """One calibration, by its name and its entry; `parts` are the entries of a mixture's parts."""

    PACKAGES = True

    calibration: str
    entry: Options[Calibration]
    parts: dict[str, Options[Calibration]] = {}
    manifest: Annotated[str, READ] = ""
    answers: Annotated[dict[str, str], READ] = {}

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        parts = config.parts(w.calibration)
        is_mixture = w.calibration not in parts
        return cls(
            calibration=w.calibration,
            entry=config.calibrations[w.calibration],
            parts=parts if is_mixture else {},
        )


class GenerateAnswers(OnModel):
    """One calibration, by its name and its entry, whose questions the model answers itself."""

    calibration: str
    entry: Options[Calibration]
    questions: Annotated[str, READ] = ""

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            calibration=w.calibration,
            entry=config.calibrations[w.calibration],
            follows=follow_family(config, w.model),
        )


class PrepareTask(Job):
    """One benchmark by its name: a task, or the text of a perplexity; the other field is None."""

    name: str
    task: Options[TaskEntry] | None = None
    text: Options[PerplexityEntry] | None = None

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entry = benchmark_entry(config, w.task)
        if isinstance(entry, TaskEntry):
            return cls(name=w.task, task=entry)
        return cls(name=w.task, text=entry)


class CheckOverlap(Job):
    """One calibration against one benchmark."""

    calibration: str
    task: str
    samples: Annotated[str, READ] = ""
    documents: Annotated[str, READ] = ""


class EstimateCost(Job):
    """The whole configuration, with all defaults.

    `strategies` are those of its searches; the forecast asks them for their rounds.
    """

    FOLLOWED = ("lamina_workflow.study.sweeps",)  # the studies decide what is counted

    config: dict[str, Any]
    strategies: list[str] = []
    manifests: Annotated[list[str], READ] = []
    calibrations: Annotated[list[str], READ] = []
    tasks: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        strategies: set[str] = set()
        for _, _, selector_name in requests.list_searches(config):
            selector = config.selectors[selector_name]
            strategies.update([selector.strategy, *selector.members])
        # A member of a portfolio may be a metric.
        return cls(config=config.plain(), strategies=sorted(strategies - METRICS.keys()))

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(f"lamina.selection.strategies.{strategy}" for strategy in self.strategies)


def benchmark_entry(config: Configuration, task: str) -> Any:
    """The entry of a benchmark, which is a task or a perplexity text."""
    benchmarks = config.benchmarks
    return benchmarks.tasks[task] if task in benchmarks.tasks else benchmarks.perplexity[task]


def checkpoint_names(config: Configuration) -> dict[str, str]:
    """The names of the dequantised checkpoints, by model.

    Models of the same content share one.
    """
    return {
        name: checkpoint_name(entry.source, entry.dtype)
        for name, entry in config.models.items()
        if is_quantised(entry.source)
    }


def _quantised_model(config: Configuration, checkpoint: str) -> Model:
    """The entry of the model whose dequantised checkpoint has this name."""
    names = checkpoint_names(config)
    return next(config.models[model] for model, name in names.items() if name == checkpoint)


def quantised_files(config: Configuration, checkpoint: str) -> list[str]:
    """The files that a checkpoint is made from; the first one describes the model.

    It is the GGUF file, or the config.json, which says how the weights are quantised.
    """
    model = _quantised_model(config, checkpoint)
    if gguf.is_gguf(model.source):
        return gguf_files(model)
    folder = Path(model.source)
    description = folder / "config.json"
    others = [path for path in chain(*list_files(folder)) if path != description]
    return [str(path) for path in (description, *others)]


def gguf_files(model: Model) -> list[str]:
    """The GGUF file of a model, or its shards."""
    return [str(file) for file in gguf.shard_files(Path(model.source))]


def model_files(config: Configuration, model: str) -> list[str]:
    """The files of a local model; if one is newer than the manifest, the manifest is stale.

    Empty for a model on the hub.
    """
    folder = Path(config.models[model].source)
    if not folder.is_dir():
        return []
    return [str(path) for path in chain(*list_files(folder))]


def data_files(name: str, entry: Any) -> list[str]:
    """Local files that a task, a text or a calibration is made of.

    name: The name of the task, which has its own files unless `entry` names others.
    """
    choices = getattr(entry, "choices", None)
    hub = getattr(entry, "hub", None)
    text = getattr(entry, "text", None)
    if choices:
        return [choices]
    if hub:
        return sorted(str(file) for file in Path(hub).rglob("*") if file.is_file())
    if text:
        return [corpus_file(text, getattr(entry, "split", None))]
    return task_files.list_task_files(name)


def calibration_files(config: Configuration, calibration: str) -> list[str]:
    """Local files that a calibration is drawn from, including those of the parts of a mixture."""
    found = []
    for part in config.parts(calibration).values():
        for task in part.drawn or [""]:
            found += data_files(task, part)
    return found

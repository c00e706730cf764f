"""Files that jobs of several rules read: those behind data, those behind variants, the checks that gate benchmarks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lamina.config.calibrations import corpus_file
from lamina.config.configuration import Configuration
from lamina.data import task_files
from lamina.study import paths
from lamina.study import requests as studies
from lamina.study.variant import Variant


def tested(config: Configuration, task: str) -> Any:
    """The entry of a benchmark, which is a task or a perplexity text."""
    benchmarks = config.benchmarks
    return benchmarks.tasks[task] if task in benchmarks.tasks else benchmarks.perplexity[task]


def local(name: str, entry: Any) -> list[str]:
    """Local files behind a task, text or file of questions. An edit of one makes its readers stale."""
    if choices := getattr(entry, "choices", None):
        return [choices]
    if hub := getattr(entry, "hub", None):
        return sorted(str(file) for file in Path(hub).rglob("*") if file.is_file())
    if text := getattr(entry, "text", None):
        return [corpus_file(text, getattr(entry, "split", None))]
    return task_files.files(name)


def of_variants(listed: Iterable[Variant]) -> list[str]:
    """The files behind variants. The training curve stands for an adapter, because it is written last."""
    parts = set()
    for variant in listed:
        files = paths.variant_files(variant)
        parts |= {files.plan, files.patch, files.adapter and paths.training(files.adapter)}
    return sorted(file for file in parts if file)


def repairs(config: Configuration, names: Iterable[str]) -> list[str]:
    """The modules of the repairs in models: the measured models run their `apply`."""
    return sorted({f"lamina.repair.methods.{config.repairs[name].method}" for name in names if name != "none"})


def gates(config: Configuration, model: str, calibration: str, task: str, listed: Iterable[Variant]) -> list[str]:
    """The checks before a benchmark: no calibration that the variants were made from may hold its documents."""
    if calibration == "none":
        return [paths.task(task)]
    seen = {name for variant in listed for name in studies.read_by(config, variant)}
    return [paths.overlap(model, name, task) for name in sorted({calibration, *seen})]

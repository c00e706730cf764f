"""Tables of benchmarks with planted documents, so that every number that a view makes of them can be made again."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from lamina_workflow.report import database
from tests.given.plausible_tables import VIEWS, write_tables

BASE = dict(
    model="m", calibration="none", selector="none", removed=0, repair="none", healing="none"
)
# By task: 1 right, 0 wrong; of tasks whose name begins with `text`, nats per token.
Documents = Mapping[str, np.ndarray]


def share_stderr(found: np.ndarray, base: np.ndarray) -> float:
    """Standard error of the share of the base model's right answers, with one document more that differs each way."""
    share = found.mean() / base.mean()
    squares = ((found - share * base) ** 2).sum() + 1 + share**2
    return float(squares**0.5 / (len(base) + 2) / base.mean())


def share_luck(found: np.ndarray, base: np.ndarray, chance: float = 0.25) -> float:
    """What its standard error has more: by how much the share would rise over a base model that is worse than measured."""
    accuracy, n_documents = base.mean(), len(base)
    error = max(base.std(ddof=1) / n_documents**0.5, (chance * (1 - chance) / n_documents) ** 0.5)
    reach = error * np.clip(15 * error / (accuracy - chance), 1.959964, 3)
    slope = found[base == 1].mean() - (found[base == 0].mean() if (base == 0).any() else 0)
    share = found.mean() / accuracy
    rise = abs(share - slope) * reach / (accuracy - reach)
    return float(max(0, rise / 1.959964 - abs(share - slope) * error / accuracy))


def variant(
    calibration: str, selector: str = "s", removed: int = 1, repair: str = "none"
) -> dict[str, Any]:
    return BASE | dict(calibration=calibration, selector=selector, removed=removed, repair=repair)


def measured(
    key: Mapping[str, Any], found: Documents
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the tables `benchmarks` and `benchmark_samples` of one variant."""
    rows, samples = [], []
    for task, values in found.items():
        text = task.startswith("text")
        mean, stderr = float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)
        shown, slope = (float(np.exp(mean)),) * 2 if text else (mean, 1.0)
        told = dict(value=shown, stderr=slope * stderr)
        metric = dict(metric="perplexity" if text else "acc_norm", higher_is_better=not text)
        rows.append({**key, "task": task, "n_samples": len(values)} | metric | told)
        one = {**key, "task": task, "metric": "nll" if text else "acc_norm"}
        samples += [
            one | dict(sample=number, value=float(value)) for number, value in enumerate(values)
        ]
    return rows, samples


def write(
    folder: Path,
    base: Documents,
    variants: Iterable[tuple[Mapping[str, Any], Documents]],
    calibrations: Iterable[Mapping[str, Any]],
    known: bool = True,
    **tables: list[dict[str, Any]],
) -> duckdb.DuckDBPyConnection:
    """The views over such tables; `known` says whether there are documents, or only what was made of them."""
    benchmarks: list[dict[str, Any]] = []
    documents: list[dict[str, Any]] = []
    for key, found in [(BASE, base), *variants]:
        rows, samples = measured(key, found)
        benchmarks += rows
        documents += samples if known else []
    told = [dict(model="m", kind="choices", chance_accuracy=0.25) | entry for entry in calibrations]
    given = dict(models=[dict(model="m", n_layers=12)], calibrations=told, benchmarks=benchmarks)
    return database.connect_views(
        VIEWS, write_tables(folder, **given, benchmark_samples=documents, **tables)
    )

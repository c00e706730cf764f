"""Compare every metric with accuracy relevance and with itself, over the units of base models."""

from collections.abc import Iterator, Sequence
from typing import Any

from lamina_workflow.runtime.script import run_script

import pyarrow as pa
from pyarrow import dataset

from lamina.relevance.metric_agreement import comparison_rows, reliabilities
from lamina.store import parquet
from lamina_workflow.stages.report import CompareMetrics


def agreement_rows(
    scores: pa.Table, sweeps: dataset.Dataset, calibrations: pa.Table
) -> Iterator[dict[str, Any]]:
    """Rows of table `agreements`, for the metrics that table `relevance` has scores of."""
    described = calibrations.to_pylist()
    scored_metrics = set(scores["metric"].filter(scores["score"].is_valid()).to_pylist())
    yield from _rows_against_accuracy(described, sweeps, sorted(scored_metrics - {"accuracy"}))
    yield from _rows_of_reliability(described, sweeps, sorted(scored_metrics))


def _rows_against_accuracy(
    described: list[dict[str, Any]], sweeps: dataset.Dataset, metrics: list[str]
) -> Iterator[dict[str, Any]]:
    n_samples = {(row["model"], row["calibration"]): row["n_samples"] for row in described}
    for model, component, metric, names, agreement in comparison_rows(
        described, sweeps, "accuracy", metrics
    ):
        counts = {
            "calibrations": ", ".join(names),
            "n_units": agreement.n_units,
            "n_calibrations": len(names),
            "n_samples": sum(n_samples[model, name] for name in names),
        }
        for statistic, interval in (
            ("pearson", agreement.pearson),
            ("spearman", agreement.spearman),
            ("misranked", agreement.misranked),
            ("badly_misranked", agreement.badly),
            ("variance_ratio", agreement.variance_ratio),
        ):
            if interval:
                p_value = agreement.p_value if statistic == "variance_ratio" else None
                key = _key(model, component, metric, statistic)
                yield key | _estimate(interval) | {"p_value": p_value} | counts


def _rows_of_reliability(
    described: list[dict[str, Any]], sweeps: dataset.Dataset, metrics: list[str]
) -> Iterator[dict[str, Any]]:
    for row, component, metric, n_units, interval in reliabilities(described, sweeps, metrics):
        counts = {
            "calibrations": row["calibration"],
            "n_units": n_units,
            "n_calibrations": 1,
            "n_samples": row["n_samples"],
        }
        yield _key(row["model"], component, metric, "reliability") | _estimate(interval) | counts


def _key(model: str, component: str, metric: str, statistic: str) -> dict[str, Any]:
    return {"model": model, "component": component, "metric": metric, "statistic": statistic}


def _estimate(interval: Sequence[float]) -> dict[str, Any]:
    return dict(zip(("value", "ci_low", "ci_high"), interval, strict=True))


if __name__ == "__main__":
    with run_script(snakemake):
        job = CompareMetrics.read(snakemake)
        rows = agreement_rows(
            parquet.read_table(job.relevance),
            dataset.dataset(job.sweeps),
            parquet.read_table(job.calibrations),
        )
        parquet.write_table(job.output, parquet.from_rows("agreements", rows), job.provenance)

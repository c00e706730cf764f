"""Compare every metric with accuracy relevance and with itself, over the units of unpruned models."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import dataset

from lamina.relevance.metric_agreement import comparisons, reliabilities
from lamina.runtime.script import running
from lamina.stages.report import CompareMetrics
from lamina.store import parquet as store


def rows(
    scores: pa.Table, sweeps: dataset.Dataset, calibrations: pa.Table
) -> Iterator[dict[str, Any]]:
    """Rows of table `agreements`, for the metrics that table `relevance` has scores of."""
    described = calibrations.to_pylist()
    samples = {(row["model"], row["calibration"]): row["n_samples"] for row in described}
    measured = set(scores["metric"].filter(scores["score"].is_valid()).to_pylist())
    others = sorted(measured - {"accuracy"})
    for model, kind, metric, names, agreement in comparisons(described, sweeps, "accuracy", others):
        counts = {
            "calibrations": ", ".join(names),
            "n_units": agreement.n_units,
            "n_calibrations": len(names),
        }
        counts["n_samples"] = sum(samples[model, name] for name in names)
        for statistic, interval in (
            ("pearson", agreement.pearson),
            ("spearman", agreement.spearman),
            ("misranked", agreement.misranked),
            ("badly_misranked", agreement.badly),
            ("variance_ratio", agreement.variance_ratio),
        ):
            if interval:
                estimate = dict(zip(("value", "ci_low", "ci_high"), interval, strict=True))
                estimate["p_value"] = agreement.p_value if statistic == "variance_ratio" else None
                yield (
                    {"model": model, "component": kind, "metric": metric, "statistic": statistic}
                    | estimate
                    | counts
                )
    for row, kind, metric, units, interval in reliabilities(described, sweeps, sorted(measured)):
        estimate = dict(zip(("value", "ci_low", "ci_high"), interval, strict=True))
        counts = {
            "calibrations": row["calibration"],
            "n_calibrations": 1,
            "n_samples": row["n_samples"],
        }
        key = {
            "model": row["model"],
            "component": kind,
            "metric": metric,
            "statistic": "reliability",
        }
        yield key | estimate | counts | {"n_units": units}


if __name__ == "__main__":
    with running(snakemake):
        job = CompareMetrics.read(snakemake)
        agreements = rows(
            store.read(job.relevance), dataset.dataset(job.sweeps), store.read(job.calibrations)
        )
        store.write(job.output, store.from_rows("agreements", agreements))

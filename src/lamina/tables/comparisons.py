"""Table `comparisons`, from the single documents of the benchmarks."""

from lamina.tables.columns import FLOAT, INT, MODEL, STRING, Columns

GRAIN = (
    "One row per pair of selectors, size, repair and own benchmark task, by the task's main metric, and one for all of "
    "these tasks together, where calibration and task are 'all': paired tests over the same test documents."
)

COLUMNS: Columns = MODEL | {
    "calibration": (STRING, "Calibration of both variants; all for the mean over calibrations and their own tasks."),
    "task": (STRING, "Own benchmark task of the calibration; all for the mean, which leaves perplexities out."),
    "metric": (
        STRING,
        "Metric of the documents' values: nll for a perplexity; accuracy for the mean, whatever the tasks call it.",
    ),
    "removed": (INT, "Number of units that both variants lack."),
    "repair": (STRING, "Repair of both variants; none without one."),
    "healing": (STRING, "Healing of both variants; none without one."),
    "selector": (STRING, "One selector; every pair stands once, accuracy first, else by name."),
    "rival": (STRING, "The other selector."),
    "difference": (FLOAT, "Mean over documents by which selector is better than rival, in the unit of the metric."),
    "ci_low": (FLOAT, "Lower end of its 95 % interval, of this pair alone: not corrected for the number of pairs."),
    "ci_high": (FLOAT, "Upper end of its 95 % interval."),
    "n_samples": (INT, "Test documents that both answered."),
    "n_different": (INT, "Those of them on which the two values differ."),
    "p_value": (
        FLOAT,
        "Two-sided p of no difference, by flipping the signs of documents' differences; 1 if none differ.",
    ),
    "p_holm": (
        FLOAT,
        "p_value corrected for all pairs and tasks of the same model, size and repair (Holm); rows for all tasks "
        "together are corrected among themselves.",
    ),
}

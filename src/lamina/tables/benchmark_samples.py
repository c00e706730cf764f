"""Table `benchmark_samples`, beside `benchmarks`."""

from lamina.tables.columns import FLOAT, INT, STRING, VARIANT, Columns

GRAIN = "One row per variant, task, metric and test document, for paired comparisons of variants."

COLUMNS: Columns = VARIANT | {
    "task": (STRING, "lm-eval task or group of tasks, or perplexity entry."),
    "part": (STRING, "Task of the group that the document is of; null where the task is none."),
    "sample": (INT, "Index of the test document, the same for every variant."),
    "metric": (STRING, "Metric the value belongs to; a perplexity's documents have their nll."),
    "value": (
        FLOAT,
        "Value of the document: 1 correct, 0 wrong for accuracies; nats per scored token for nll; of sampled answers, "
        "over all of them. Of a group that weighs its tasks alike, multiplied by what makes up for their sizes: the "
        "mean is the group's value.",
    ),
}

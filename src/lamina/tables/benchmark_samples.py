"""Table `benchmark_samples`, beside `benchmarks`."""

from lamina.tables.columns import FLOAT, INT, STRING, VARIANT, Columns

GRAIN = "One row per variant, task, metric and test document, for paired comparisons of variants."

COLUMNS: Columns = VARIANT | {
    "task": (STRING, "lm-eval task or perplexity entry."),
    "sample": (INT, "Index of the test document, the same for every variant."),
    "metric": (STRING, "Metric the value belongs to; a perplexity's documents have their nll."),
    "value": (
        FLOAT,
        "Value of the document: 1 correct, 0 wrong for accuracies; nats per scored token for nll; of sampled answers, "
        "over all of them.",
    ),
}

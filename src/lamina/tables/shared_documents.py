"""Table `shared_documents`, from the checks of calibrations against benchmarks."""

from lamina.tables.columns import CALIBRATION, INT, STRING, Columns

GRAIN = (
    "One row per calibration and benchmark that its variants are measured by: how many documents of the calibration "
    "have their like among the test documents. An equal one is refused, so there are none here."
)

COLUMNS: Columns = CALIBRATION | {
    "task": (STRING, "Task or perplexity text of the benchmark."),
    "documents": (INT, "Documents of the calibration."),
    "tested": (INT, "Test documents of the benchmark."),
    "near": (
        INT,
        "Documents of the calibration that are near duplicates of a test document: they have at least half of the runs "
        "of 13 words of the shorter of the two. More than 1 % of the documents are refused.",
    ),
    "sharing": (INT, "Documents that share at least one run of 13 words with a test document, near ones included."),
}

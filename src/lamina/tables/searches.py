"""Table `searches`, from the jobs that search whole sets of units."""

import pyarrow as pa

from lamina.tables.columns import BOOL, CALIBRATION, FLOAT, INT, STRING, Columns

GRAIN = (
    "One row per set of units and comparison: everything that a search (evolutionary or portfolio) tried. Sets are "
    "compared by the mean of the loss behind the selector's metric, 1 - accuracy for accuracy, repaired where the "
    "selector has a repair in the loop. At the end the winner of each size is measured on samples that the search "
    "never saw, where the best of many is no longer flattered."
)

COLUMNS: Columns = CALIBRATION | {
    "selector": (STRING, "Name of the selector in the configuration."),
    "evaluation": (
        INT,
        "Number of the row in its job, from 0; the unpruned model comes first.",
    ),
    "strategy": (
        STRING,
        "The selector's strategy; none for the unpruned model.",
    ),
    "member": (
        STRING,
        "Of a portfolio: the member that proposed the set, or exchange; null for other strategies.",
    ),
    "repair": (STRING, "Of a portfolio: the repair in place, or none; null for other strategies."),
    "removed": (INT, "Number of units that the set removes; 0 for the unpruned model."),
    "units": (pa.list_(STRING), "Units of the set: 12, 12.attention or 12.mlp."),
    "step": (INT, "In the stages the generation, from 0; else the size."),
    "stage": (
        STRING,
        "Stage of the selection, from 1; winner: the set that is best in the end, on all samples of the search; held "
        "back: the same on the samples that the search never saw.",
    ),
    "n_samples": (INT, "Samples that the set was compared on."),
    "n_new": (
        INT,
        "Those of them for which the search had not yet asked about the set. Their sum is its number of evaluations.",
    ),
    "loss": (FLOAT, "Mean loss on these samples, in the unit of the loss; infinite if one is no finite number."),
    "loss_stderr": (FLOAT, "Its standard error; held back only."),
    "kept": (BOOL, "Whether the set was kept for what followed."),
    "layer_tokens": (
        FLOAT,
        "Tokens through one layer each that were run for this row, padding included, an equal share of its passes; 0 "
        "where all losses were known already. Fits of patches are not counted.",
    ),
}

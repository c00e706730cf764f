"""Table `searches`, from the jobs that search whole sets of units."""

import pyarrow as pa

from lamina.tables.columns import BOOL, CALIBRATION, FLOAT, INT, STRING, Columns

GRAIN = (
    "One row per set of units and comparison: everything that a search (strategies beam and evolutionary) tried, and "
    "what greedy (iterative) and one-shot removal tried in the same job with the same objective and samples. Sets are "
    "compared by the mean of the loss behind the selector's metric, 1 - accuracy for accuracy, repaired where the "
    "selector has a repair in the loop. At the end the winner of each strategy and size is measured on samples that "
    "no search saw, where the best of many is no longer flattered."
)

COLUMNS: Columns = CALIBRATION | {
    "selector": (STRING, "Name of the selector in the configuration."),
    "evaluation": (INT, "Number of the row in its job, from 0: by strategy, in the order in which each one asked."),
    "strategy": (
        STRING,
        "Who asked: the selector's own strategy, or its rivals iterative and one_shot; none for the unpruned model.",
    ),
    "removed": (INT, "Number of units that the set removes; 0 for the unpruned model."),
    "units": (pa.list_(STRING), "Units of the set: 12, 12.attention or 12.mlp."),
    "step": (INT, "Size reached; in the stages of an evolutionary search the generation, from 0."),
    "stage": (
        STRING,
        "Stage of the selection, from 1; winner: the set that is best in the end, on all samples of the search; held "
        "back: the same on the samples that no search saw.",
    ),
    "n_samples": (INT, "Samples that the set was compared on."),
    "n_new": (
        INT,
        "Those of them for which this strategy had not yet asked about the set. Their sum is its number of "
        "evaluations, whatever other strategies of the job had measured before.",
    ),
    "loss": (FLOAT, "Mean loss on these samples, in the unit of the loss; infinite if one is no finite number."),
    "loss_stderr": (FLOAT, "Its standard error; held back only."),
    "kept": (BOOL, "Whether the set was kept for what followed."),
    "layer_tokens": (
        FLOAT,
        "Tokens through one layer each that were run for this row, padding included, an equal share of its passes; 0 "
        "where all losses were known already, also from a strategy before it. Fits of patches are not counted.",
    ),
    "difference": (
        FLOAT,
        "Held back only: loss minus that of the set that the selector's own strategy found at this size, on the same "
        "samples; above 0 the search has won.",
    ),
    "difference_stderr": (FLOAT, "Its standard error, paired over the samples."),
}

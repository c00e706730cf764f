"""The tables of what is removed: plans, and the searches of whole sets."""

from lamina.tables.columns import BOOL, CALIBRATION, FLOAT, INT, SELECTION, STRING, STRINGS, Table

PLANS = Table(
    "One row per plan and unit: what a selector removes or replaces at a size, in order. A refused plan has one row, "
    "in which all but its key and the reason is null.",
    SELECTION,
    unit=(STRING, "Unit removed: 12, 12.attention or 12.mlp; 12.@math is layer 12 replaced by that of a donor."),
    donor=(STRING, "Donor whose layer takes the unit's place, which is not removed then; null for a removal."),
    position=(INT, "Place in the order of removal, from 1."),
    score=(
        FLOAT,
        "Score for which the unit was picked, in the unit of the metric; of a block that of the whole run, of a search "
        "the mean loss of the whole set; combined where the selector scores several calibrations; null where the "
        "strategy has none.",
    ),
    accuracy_before=(
        FLOAT,
        "Accuracy on the calibration before the unit went, 0 to 1, repaired where the selector has a repair in the "
        "loop; null where not measured.",
    ),
    accuracy_after=(FLOAT, "The same after the unit went."),
    replicate_of=(STRING, "Label that the selector shares with its replicates, its `group`; null without."),
    refused=(STRING, "Why there is no plan, and the remedy; null for a plan."),
)

SEARCHES = Table(
    "One row per set of units and comparison: everything that a search (evolutionary or portfolio) tried. Sets are "
    "compared by the mean of the loss behind the selector's metric, 1 - accuracy for accuracy, repaired where the "
    "selector has a repair in the loop. At the end the winner of each size is measured on samples that the search "
    "never saw, where the best of many is no longer flattered.",
    CALIBRATION,
    selector=(STRING, "Name of the selector in the configuration."),
    evaluation=(
        INT,
        "Number of the row in its job, from 0; the unpruned model comes first.",
    ),
    strategy=(
        STRING,
        "The selector's strategy; none for the unpruned model.",
    ),
    member=(STRING, "Of a portfolio: the member that proposed the set, or exchange; null for other strategies."),
    repair=(STRING, "Of a portfolio: the repair in place, or none; null for other strategies."),
    removed=(INT, "Number of units that the set removes; 0 for the unpruned model."),
    units=(STRINGS, "Units of the set: 12, 12.attention or 12.mlp."),
    step=(INT, "In the stages the generation, from 0; else the size."),
    stage=(
        STRING,
        "Stage of the selection, from 1; winner: the set that is best in the end, on all samples of the search; held "
        "back: the same on the samples that the search never saw.",
    ),
    n_samples=(INT, "Samples that the set was compared on."),
    n_new=(
        INT,
        "Those of them for which the search had not yet asked about the set. Their sum is its number of evaluations.",
    ),
    loss=(FLOAT, "Mean loss on these samples, in the unit of the loss; infinite if one is no finite number."),
    loss_stderr=(FLOAT, "Its standard error; held back only."),
    kept=(BOOL, "Whether the set was kept for what followed."),
    layer_tokens=(
        FLOAT,
        "Tokens through one layer each that were run for this row, padding included, an equal share of its passes; 0 "
        "where all losses were known already. Fits of patches are not counted.",
    ),
)

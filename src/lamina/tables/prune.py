"""The tables of what is removed: plans, and the searches of whole sets."""

from lamina.tables.columns import CALIBRATION_KEYS, SELECTION_KEYS, Column, Table

PLANS = Table(
    grain=(
        "One row per plan and edit: what a selector removes or changes at a size, in order. A "
        "refused plan has one row, in which all but its key and the reason is null."
    ),
    columns={
        **SELECTION_KEYS,
        "unit": Column(
            "string",
            "Edit: 12, 12.attention or 12.mlp is removed; 12x2 or 12-14x2 runs twice (12x2~ with "
            "damping); 12<>13 change places; 12=math:12 is replaced by a layer of a donor.",
        ),
        "edit": Column(
            "string",
            "Kind of an edit that removes nothing: repetition, exchange or replacement; null for a "
            "removal.",
        ),
        "position": Column("int64", "Place in the order of removal, from 1."),
        "score": Column(
            "double",
            "Score for which the unit was picked, in the unit of the metric; of a block that of "
            "the whole run, of a search the mean loss of the whole set; combined where the "
            "selector scores several calibrations; null where the strategy has none.",
        ),
        "accuracy_before": Column(
            "double",
            "Accuracy on the calibration before the unit went, 0 to 1, repaired where the "
            "selector has a repair in the loop; of metric exact_match the share of right written "
            "answers; null where not measured.",
        ),
        "accuracy_after": Column("double", "The same after the unit went."),
        "repair": Column(
            "string",
            "Repair with which the plan was chosen: the one that won in a portfolio, or the "
            "selector's repair in the loop; none without one. Null in tables of earlier versions.",
        ),
        "replicate_of": Column(
            "string",
            "Label that the selector shares with its replicates, its `group`; null without.",
        ),
        "refused": Column("string", "Why there is no plan, and the remedy; null for a plan."),
    },
)

SEARCHES = Table(
    grain=(
        "One row per set of units and comparison: everything that a search (a selector of strategy "
        "pairwise, portfolio, rearrange or repeat) tried. Sets are compared by the mean of the "
        "loss behind the selector's metric, 1 - accuracy for accuracy. At the end the winner of "
        "each size is measured on samples that the search never saw, where the best of many is no "
        "longer flattered."
    ),
    columns={
        **CALIBRATION_KEYS,
        "selector": Column("string", "Name of the selector in the configuration."),
        "evaluation": Column(
            "int64",
            "Number of the row in its job, from 0; the unpruned model comes first.",
        ),
        "strategy": Column("string", "The selector's strategy; none for the unpruned model."),
        "member": Column(
            "string",
            "Of a portfolio: the member that proposed the set, or exchange; null for other "
            "strategies.",
        ),
        "repair": Column(
            "string",
            "The repair in place, or none, in a portfolio; null for other strategies.",
        ),
        "removed": Column(
            "int64",
            "Size of the set: its units, or, with `units: both`, the whole layers that its "
            "sub-layers count as, less the layers that run again; 0 for the unpruned model, whose "
            "`strategy` is none.",
        ),
        "units": Column("list<string>", "Units of the set: 12, 12.attention or 12.mlp."),
        "step": Column(
            "int64",
            "Size for which the set was compared; 0 for the unpruned model and for what pairwise "
            "measures.",
        ),
        "stage": Column(
            "string",
            "Stage of the selection, from 1; winner: the set that is best in the end, on all "
            "samples of the search; held back: the same on the samples that the search never saw.",
        ),
        "n_samples": Column("int64", "Samples that the set was compared on."),
        "n_new": Column(
            "int64",
            "Those of them for which the search had not yet asked about the set. Their sum is its "
            "number of evaluations.",
        ),
        "loss": Column(
            "double",
            "Mean loss on these samples, in the unit of the loss; infinite if one is no finite "
            "number.",
        ),
        "loss_stderr": Column("double", "Its standard error; held back only."),
        "change": Column(
            "double",
            "Mean difference of the loss from that of the base model on the same samples, below 0 "
            "for a gain; null where the search did not measure the base model.",
        ),
        "change_stderr": Column("double", "Standard error of change, over samples."),
        "kept": Column("bool", "Whether the set was kept for what followed."),
        "layer_tokens": Column(
            "double",
            "Tokens through one layer each that were run for this row, padding included, an equal "
            "share of its passes; 0 where all losses were known already. Fits of patches are not "
            "counted.",
        ),
    },
)

"""The tables of what is removed: plans, and the searches of whole sets."""

from lamina.tables.columns import CALIBRATION_KEYS, SELECTION_KEYS, Column, Table

PLANS = Table(
    grain=(
        "One row per plan and edit: what a selector removes or changes at a size, in order. A "
        "refused plan has one row with its key and the reason; all else is null."
    ),
    columns={
        **SELECTION_KEYS,
        "unit": Column(
            "string",
            "Edit: 12, 12.attention or 12.mlp is removed; 12x2 or 12-14x2 runs twice (12x2~ with "
            "damping); 12<>13 are swapped; 12=math:12 is replaced by a layer of a donor.",
        ),
        "edit": Column(
            "string",
            "Kind of the edit: repetition, exchange or replacement; null for a removal.",
        ),
        "position": Column("int64", "Position in the order of removal, from 1."),
        "score": Column(
            "double",
            "Score by which the unit was chosen, in the unit of the metric. For a block it is "
            "the score of the whole run, for a search the mean loss of the whole set. Scores on "
            "several calibrations are combined. Null if the strategy has no scores.",
        ),
        "accuracy_before": Column(
            "double",
            "Accuracy on the calibration before the unit was removed, 0 to 1, with the repair if "
            "the selector has one in the loop. For metric exact_match, the share of right "
            "generated answers. Null if not measured.",
        ),
        "accuracy_after": Column("double", "The same after the unit was removed."),
        "repair": Column(
            "string",
            "Repair with which the plan was chosen: the one that won in a portfolio, or the "
            "selector's repair in the loop; none without one. Null in tables of earlier versions.",
        ),
        "replicate_of": Column(
            "string",
            "Label that the selector shares with its replicates (its `group`); null without "
            "replicates.",
        ),
        "refused": Column("string", "Why there is no plan, and the remedy; null for a plan."),
    },
)

SEARCHES = Table(
    grain=(
        "One row per set of units and comparison: everything that a search (strategy pairwise, "
        "portfolio, rearrange or repeat) tried. Sets are compared by the mean loss of the "
        "selector's metric; for accuracy, it is 1 - accuracy. Finally the winner of each size is "
        "measured on samples that the search did not use, which removes the bias of selecting "
        "the best of many."
    ),
    columns={
        **CALIBRATION_KEYS,
        "selector": Column("string", "Name of the selector in the configuration."),
        "evaluation": Column(
            "int64",
            "Index of the row in its job, from 0; the unpruned model comes first.",
        ),
        "strategy": Column("string", "The selector's strategy; none for the unpruned model."),
        "member": Column(
            "string",
            "In a portfolio: the member that proposed the set, or exchange; null for other "
            "strategies.",
        ),
        "repair": Column(
            "string",
            "In a portfolio: the repair that was applied, or none; null for other strategies.",
        ),
        "removed": Column(
            "int64",
            "Size of the set: number of units (with `units: both`, the number of whole layers "
            "that they count as) minus number of repeated layers; 0 for the unpruned model, "
            "whose `strategy` is none.",
        ),
        "units": Column("list<string>", "Units of the set: 12, 12.attention or 12.mlp."),
        "step": Column(
            "int64",
            "Size for which the set was compared; 0 for the unpruned model and for the single "
            "removals and pairs of pairwise.",
        ),
        "stage": Column(
            "string",
            "Stage of the selection, from 1; winner: the final set, on all samples of the "
            "search; held back: the final set on the samples that the search did not use.",
        ),
        "n_samples": Column("int64", "Samples on which the set was compared."),
        "n_new": Column(
            "int64",
            "Samples on which the set had not been measured before. Their sum over rows is the "
            "number of evaluations of the search.",
        ),
        "loss": Column(
            "double",
            "Mean loss on these samples, in the unit of the loss; infinite if one is not finite.",
        ),
        "loss_stderr": Column("double", "Standard error of loss; only at stage held back."),
        "change": Column(
            "double",
            "Mean difference of the loss from that of the base model on the same samples, below 0 "
            "for a gain; null where the search did not measure the base model.",
        ),
        "change_stderr": Column("double", "Standard error of change, over samples."),
        "kept": Column("bool", "Whether the set was kept for the next stage."),
        "layer_tokens": Column(
            "double",
            "Cost of this row in tokens × layers, including padding: an equal share of its "
            "passes; 0 if all losses were known already. Fits of patches are not counted.",
        ),
    },
)

"""Table `plans`, from the plan files."""

from lamina.tables.columns import FLOAT, INT, SELECTION, STRING, Columns

GRAIN = (
    "One row per plan and unit: what a selector removes or replaces at a size, in order. A refused plan has one row, "
    "in which all but its key and the reason is null."
)

COLUMNS: Columns = SELECTION | {
    "unit": (STRING, "Unit removed: 12, 12.attention or 12.mlp; 12.@math is layer 12 replaced by that of a donor."),
    "donor": (STRING, "Donor whose layer takes the unit's place, which is not removed then; null for a removal."),
    "position": (INT, "Place in the order of removal, from 1."),
    "score": (
        FLOAT,
        "Score for which the unit was picked, in the unit of the metric; of a block that of the whole run, of a search "
        "the mean loss of the whole set; combined where the selector scores several calibrations; null where the "
        "strategy has none.",
    ),
    "accuracy_before": (
        FLOAT,
        "Accuracy on the calibration before the unit went, 0 to 1, repaired where the selector has a repair in the "
        "loop; null where not measured.",
    ),
    "accuracy_after": (FLOAT, "The same after the unit went."),
    "replicate_of": (STRING, "Label that the selector shares with its replicates, its `group`; null without."),
    "refused": (STRING, "Why there is no plan, and the remedy; null for a plan."),
}

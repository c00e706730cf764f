"""Table `dissociations`, from the sweeps of unpruned models."""

from lamina.tables.columns import BOOL, CALIBRATION, FLOAT, INT, STRING, Columns

GRAIN = (
    "One row per model, kind of unit, pair of calibrations and unit: how much more accuracy relevance the unit of the "
    "unpruned model has for one than for the other. Calibrations on which the model is at chance are left out."
)

COLUMNS: Columns = CALIBRATION | {
    "rival": (STRING, "The calibration that it is compared with."),
    "component": (STRING, "Kind of unit: layer, attention or mlp."),
    "unit": (STRING, "The unit."),
    "layer": (INT, "Its layer."),
    "difference": (
        FLOAT,
        "Accuracy relevance on calibration less that on rival: above 0 the unit matters more to the former.",
    ),
    "ci_low": (
        FLOAT,
        "Lower end of its 95 % interval over the samples of both, from the draws behind the intervals of relevance.",
    ),
    "ci_high": (FLOAT, "Upper end of its 95 % interval."),
    "p_value": (FLOAT, "Two-sided p of no difference, from the same draws."),
    "q_value": (FLOAT, "p_value corrected for the number of units of the pair [Benjamini and Hochberg 1995]."),
    "null_low": (
        FLOAT,
        "Lower end of the band that holds 95 % of the differences between random halves of one calibration: the wider "
        "one of the two calibrations'. Halves are smaller than the whole, so the band is wider than needed.",
    ),
    "null_high": (FLOAT, "Upper end of the band."),
    "sure": (BOOL, "Whether q_value is at most 0.05 and difference outside the band."),
    "n_samples": (INT, "Samples of calibration."),
    "n_rival": (INT, "Samples of rival."),
}

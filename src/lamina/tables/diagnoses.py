"""Table `diagnoses`, from measurements on complete models."""

from lamina.tables.columns import CALIBRATION, FLOAT, INT, STRING, Columns

GRAIN = (
    "One row per model, calibration, diagnosis, layer and measure (of a fit also number of samples and point): what a "
    "layer does, measured without removing it."
)

COLUMNS: Columns = CALIBRATION | {
    "diagnosis": (STRING, "Name of the diagnosis in the configuration."),
    "kind": (STRING, "Kind of diagnosis, such as variance."),
    "layer": (INT, "Layer or boundary that was measured, in base numbering; null for a number of the whole model."),
    "measure": (STRING, "What was measured of it; a diagnosis has one or several."),
    "point": (FLOAT, "Where on its axis a measure was taken, such as the ridge of a fit; null for a single number."),
    "value": (FLOAT, "The measured number, in the unit of the measure."),
    "ci_low": (FLOAT, "Lower end of the 95 % interval of value; null where the measure has none."),
    "ci_high": (FLOAT, "Upper end of the 95 % interval of value; null where the measure has none."),
    "n_samples": (INT, "Number of samples behind value; of a fit, those that it was fitted on."),
    "control": (FLOAT, "The same measure under the diagnosis's control, such as random labels; null without one."),
}

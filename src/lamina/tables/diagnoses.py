"""Table `diagnoses`, from measurements that remove nothing."""

from lamina.tables.columns import CALIBRATION, FLOAT, INT, STRING, Columns

GRAIN = "One row per model, calibration, diagnosis, layer and measure: what a layer does, measured without removing it."

COLUMNS: Columns = CALIBRATION | {
    "diagnosis": (STRING, "Name of the diagnosis in the configuration."),
    "kind": (STRING, "Kind of diagnosis, such as variance."),
    "layer": (INT, "Layer or boundary that was measured, in base numbering; null for a number of the whole model."),
    "measure": (STRING, "What was measured of it; a diagnosis has one or several."),
    "value": (FLOAT, "The measured number, in the unit of the measure."),
    "ci_low": (FLOAT, "Lower end of the 95 % interval of value; null where the measure has none."),
    "ci_high": (FLOAT, "Upper end of the 95 % interval of value; null where the measure has none."),
    "n_samples": (INT, "Number of samples behind value."),
    "control": (FLOAT, "The same measure under the diagnosis's control, such as random labels; null without one."),
}

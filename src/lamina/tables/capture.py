"""The tables of what is measured on whole models: activations and diagnoses."""

from lamina.tables.columns import CALIBRATION_KEYS, Column, Table

ACTIVATIONS = Table(
    grain=(
        "One row per model, calibration and pair of boundaries: the residual stream that enters "
        "layer `layer` of the base model, compared with the one that enters layer + span. Rows "
        "of span 0 describe one boundary, the others compare two."
    ),
    columns={
        **CALIBRATION_KEYS,
        "layer": Column(
            "int64",
            "First boundary: the stream that enters this layer, 0 to L - 1; L is the stream "
            "after the last layer.",
        ),
        "span": Column(
            "int64",
            "Number of layers between the two boundaries, 1 to L - layer; 0 for one boundary "
            "alone.",
        ),
        "cosine": Column(
            "double",
            "1 - cos of the two streams, 0 (same direction) to 2: mean over tokens, then samples; "
            "null at span 0.",
        ),
        "cosine_stderr": Column(
            "double",
            "Standard error of cosine over samples; null for a single sample.",
        ),
        "angular_last": Column(
            "double",
            "Angle between the two streams at the last token (not padding), divided by pi, 0 "
            "(same direction) to 1 (opposite), mean over samples; null at span 0.",
        ),
        "angular_last_stderr": Column(
            "double",
            "Standard error of angular_last over samples; null for a single sample.",
        ),
        "l2_relative": Column(
            "double",
            "Euclidean distance of the two streams relative to the norm of the first, 0 upwards: "
            "mean over tokens, then samples; null at span 0.",
        ),
        "norm": Column(
            "double",
            "Euclidean norm of a token's stream, mean over tokens, then samples; null except at "
            "span 0.",
        ),
        "channel_magnitude": Column(
            "list<float>",
            "Absolute value of each of the C channels of the stream, mean over tokens, then "
            "samples; null except at span 0.",
        ),
        "n_samples": Column("int64", "Number of samples."),
        "n_tokens": Column(
            "int64",
            "Tokens of context and gold answer, summed over the samples; padding is never counted.",
        ),
    },
)

DIAGNOSES = Table(
    grain=(
        "One row per model, calibration, diagnosis, layer and measure (for a fit also number of "
        "samples and point): what a layer does, measured without removing it."
    ),
    columns={
        **CALIBRATION_KEYS,
        "diagnosis": Column("string", "Name of the diagnosis in the configuration."),
        "kind": Column("string", "Kind of diagnosis, such as variance."),
        "layer": Column(
            "int64",
            "Layer or boundary that was measured, numbered as in the base model; null for a "
            "value of the whole model.",
        ),
        "measure": Column("string", "Name of the measure; a diagnosis has one or several."),
        "point": Column(
            "double",
            "Point at which the measure was taken, such as the ridge of a fit; null for a single "
            "value.",
        ),
        "value": Column("double", "The measured value, in the unit of the measure."),
        "ci_low": Column(
            "double",
            "Lower end of the 95 % interval of value; null if the measure has none.",
        ),
        "ci_high": Column(
            "double",
            "Upper end of the 95 % interval of value; null if the measure has none.",
        ),
        "n_samples": Column(
            "int64",
            "Number of samples behind value; for a fit, the samples that it was fitted on.",
        ),
        "control": Column(
            "double",
            "The same measure under the diagnosis's control, such as random labels; null without "
            "one.",
        ),
    },
)

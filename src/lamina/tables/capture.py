"""The tables of what is measured on whole models: activations and diagnoses."""

from lamina.tables.columns import CALIBRATION, CHANNELS, FLOAT, INT, STRING, Table

ACTIVATIONS = Table(
    "One row per model, calibration and pair of boundaries: the residual stream entering layer `layer` of the base "
    "model against the one entering layer + span. Rows of span 0 describe one boundary, the others compare two.",
    CALIBRATION,
    layer=(INT, "First boundary: the stream entering this layer, 0 to L - 1; L: the stream leaving the last layer."),
    span=(INT, "Number of layers between the two boundaries, 1 to L - layer; 0 for one boundary alone."),
    cosine=(
        FLOAT,
        "1 - cos of the two streams, 0 (same direction) to 2: mean over tokens, then samples; null at span 0.",
    ),
    cosine_stderr=(FLOAT, "Standard error of cosine over samples; null for a single sample."),
    angular_last=(
        FLOAT,
        "Angle between the two streams at the last real token divided by pi, 0 (same direction) to 1 (opposite), mean "
        "over samples; null at span 0.",
    ),
    angular_last_stderr=(FLOAT, "Standard error of angular_last over samples; null for a single sample."),
    l2_relative=(
        FLOAT,
        "Euclidean distance of the two streams relative to the norm of the first, 0 upwards: mean over tokens, then "
        "samples; null at span 0.",
    ),
    norm=(FLOAT, "Euclidean norm of a token's stream, mean over tokens, then samples; null but at span 0."),
    channel_magnitude=(
        CHANNELS,
        "Absolute value of each of the C channels of the stream, mean over tokens, then samples; null but at span 0.",
    ),
    n_samples=(INT, "Number of samples."),
    n_tokens=(INT, "Tokens of context and gold answer, summed over the samples; padding is never counted."),
)

DIAGNOSES = Table(
    "One row per model, calibration, diagnosis, layer and measure (of a fit also number of samples and point): what a "
    "layer does, measured without removing it.",
    CALIBRATION,
    diagnosis=(STRING, "Name of the diagnosis in the configuration."),
    kind=(STRING, "Kind of diagnosis, such as variance."),
    layer=(INT, "Layer or boundary that was measured, in base numbering; null for a number of the whole model."),
    measure=(STRING, "What was measured of it; a diagnosis has one or several."),
    point=(FLOAT, "Where on its axis a measure was taken, such as the ridge of a fit; null for a single number."),
    value=(FLOAT, "The measured number, in the unit of the measure."),
    ci_low=(FLOAT, "Lower end of the 95 % interval of value; null where the measure has none."),
    ci_high=(FLOAT, "Upper end of the 95 % interval of value; null where the measure has none."),
    n_samples=(INT, "Number of samples behind value; of a fit, those that it was fitted on."),
    control=(FLOAT, "The same measure under the diagnosis's control, such as random labels; null without one."),
)

"""Table `activations`, from captures of the base model's residual stream."""

from lamina.tables.columns import CALIBRATION, CHANNELS, FLOAT, INT, Columns

GRAIN = (
    "One row per model, calibration and pair of boundaries: the residual stream entering layer `layer` of the base "
    "model against the one entering layer + span. Rows of span 0 describe one boundary, the others compare two."
)

COLUMNS: Columns = CALIBRATION | {
    "layer": (INT, "First boundary: the stream entering this layer, 0 to L - 1; L: the stream leaving the last layer."),
    "span": (INT, "Number of layers between the two boundaries, 1 to L - layer; 0 for one boundary alone."),
    "cosine": (
        FLOAT,
        "1 - cos of the two streams, 0 (same direction) to 2: mean over tokens, then samples; null at span 0.",
    ),
    "cosine_stderr": (FLOAT, "Standard error of cosine over samples; null for a single sample."),
    "angular_last": (
        FLOAT,
        "Angle between the two streams at the last real token divided by pi, 0 (same direction) to 1 (opposite), mean "
        "over samples; null at span 0.",
    ),
    "angular_last_stderr": (FLOAT, "Standard error of angular_last over samples; null for a single sample."),
    "l2_relative": (
        FLOAT,
        "Euclidean distance of the two streams relative to the norm of the first, 0 upwards: mean over tokens, then "
        "samples; null at span 0.",
    ),
    "norm": (FLOAT, "Euclidean norm of a token's stream, mean over tokens, then samples; null but at span 0."),
    "channel_magnitude": (
        CHANNELS,
        "Absolute value of each of the C channels of the stream, mean over tokens, then samples; null but at span 0.",
    ),
    "n_samples": (INT, "Number of samples."),
    "n_tokens": (INT, "Tokens of context and gold answer, summed over the samples; padding is never counted."),
}

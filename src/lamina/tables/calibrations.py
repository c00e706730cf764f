"""Table `calibrations`, from the metadata of the tokenised samples."""

from lamina.tables.columns import CALIBRATION, FLOAT, INT, STRING, Columns

GRAIN = (
    "One row per model and calibration: the samples on which units are scored and patches fitted, tokenised for that "
    "model. Never test data."
)

COLUMNS: Columns = CALIBRATION | {
    "kind": (STRING, "choices (multiple choice), generated (answer under teacher forcing), text, or mixed."),
    "n_samples": (INT, "Number of samples."),
    "n_tokens": (INT, "Tokens of context and gold answer, summed over the samples; wrong choices are not counted."),
    "n_cut": (
        INT,
        "Number of samples whose prompt is longer than the model's context and lost its oldest tokens, as in lm-eval.",
    ),
    "chance_accuracy": (
        FLOAT,
        "Accuracy of guessing, 0 to 1: mean over samples of the share of right choices; 1 / vocabulary for text; 0 for "
        "generated answers.",
    ),
    "choice_score": (
        STRING,
        "How accuracy and margin compare choices: acc_norm (log-likelihood by length) or acc; as configured.",
    ),
    "source": (
        STRING,
        "lm-eval task or group of tasks (several: comma-separated), text or file the samples come from.",
    ),
    "split": (STRING, "Split of the source that was sampled; null for a file of choices or a text without splits."),
    "seed": (INT, "Seed of the sampling."),
    "replicate_of": (STRING, "Label that it shares with its replicates, `group` in the configuration; null without."),
}

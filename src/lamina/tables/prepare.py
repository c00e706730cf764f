"""The tables of what a study begins with: models, calibrations, and what these share with test documents."""

from lamina.tables.columns import CALIBRATION, FLOAT, INT, MODEL, STRING, Table

MODELS = Table(
    "One row per model: what was loaded, and how large it is.",
    MODEL,
    family=(STRING, "Architecture family (model_type of transformers)."),
    n_layers=(INT, "Number of decoder layers, L."),
    hidden_size=(INT, "Width of the residual stream, C, in channels."),
    vocabulary=(INT, "Number of token ids."),
    parameters=(INT, "Number of parameters in the weight files (tied ones once)."),
    weights_bytes=(INT, "Size of the weights as they are loaded, in bytes."),
    dtype=(STRING, "Floating point type to load the weights in, as configured; auto takes that of the files."),
    source=(STRING, "Local folder or hub id."),
    revision=(STRING, "Revision of a hub model; null for a local folder."),
    weights_sha256=(STRING, "SHA-256 over the weight files: which weights, exactly."),
    series=(STRING, "Training that the model is a checkpoint of; null for a model by itself."),
    step=(INT, "How far that training was, in its steps or tokens; null for a model by itself."),
)

CALIBRATIONS = Table(
    "One row per model and calibration: the samples on which units are scored and patches fitted, tokenised for that "
    "model. Never test data.",
    CALIBRATION,
    kind=(STRING, "choices (multiple choice), generated (answer under teacher forcing), text, or mixed."),
    n_samples=(INT, "Number of samples."),
    n_tokens=(INT, "Tokens of context and gold answer, summed over the samples; wrong choices are not counted."),
    n_cut=(
        INT,
        "Number of samples whose prompt is longer than the model's context and lost its oldest tokens, as in lm-eval.",
    ),
    chance_accuracy=(
        FLOAT,
        "Accuracy of guessing, 0 to 1: mean over samples of the share of right choices; 1 / vocabulary for text; 0 for "
        "generated answers.",
    ),
    choice_score=(
        STRING,
        "How accuracy and margin compare choices: acc_norm (log-likelihood by length) or acc; as configured.",
    ),
    source=(
        STRING,
        "lm-eval task or group of tasks (several: comma-separated), text or file the samples come from.",
    ),
    split=(STRING, "Split of the source that was sampled; null for a file of choices or a text without splits."),
    seed=(INT, "Seed of the sampling."),
    replicate_of=(STRING, "Label that it shares with its replicates, `group` in the configuration; null without."),
)

SHARED_DOCUMENTS = Table(
    "One row per calibration and benchmark that its variants are measured by: how many documents of the calibration "
    "have their like among the test documents. An equal one is refused, so there are none here.",
    CALIBRATION,
    task=(STRING, "Task or perplexity text of the benchmark."),
    documents=(INT, "Documents of the calibration."),
    tested=(INT, "Test documents of the benchmark."),
    near=(
        INT,
        "Documents of the calibration that are near duplicates of a test document: they have at least half of the runs "
        "of 13 words of the shorter of the two. More than 1 % of the documents are refused.",
    ),
    sharing=(INT, "Documents that share at least one run of 13 words with a test document, near ones included."),
)

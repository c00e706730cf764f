"""The tables of what a study begins with: models, calibrations, and shared documents."""

from lamina.tables.columns import CALIBRATION_KEYS, MODEL_KEYS, Column, Table

MODELS = Table(
    grain="One row per model: what was loaded, and how large it is.",
    columns={
        **MODEL_KEYS,
        "family": Column("string", "Architecture family (model_type of transformers)."),
        "n_layers": Column("int64", "Number of decoder layers, L."),
        "hidden_size": Column("int64", "Width of the residual stream, C, in channels."),
        "vocabulary": Column("int64", "Number of token ids."),
        "parameters": Column(
            "int64", "Number of parameters in the weight files; tied ones count once."
        ),
        "weights_bytes": Column("int64", "Size of the weights as they are loaded, in bytes."),
        "head_parameters": Column(
            "int64",
            "Number of these parameters in the output head, which every token reads. Null in "
            "tables of earlier versions, as are the next two columns.",
        ),
        "decoder": Column(
            "string",
            "model_type of the decoder; it differs from family in a model of images and text.",
        ),
        "runs_code_in_vllm": Column("bool", "Whether vLLM can run an export with code."),
        "dtype": Column("string", "Floating point type of the weights as they are loaded."),
        "source": Column("string", "Local folder or hub id."),
        "revision": Column("string", "Revision of a hub model; null for a local folder."),
        "weights_sha256": Column(
            "string",
            "SHA-256 over the weight files: which weights, exactly.",
        ),
        "series": Column(
            "string",
            "Training run that the model is a checkpoint of; null if it is not part of a series.",
        ),
        "step": Column(
            "int64",
            "Progress of that training run, in steps or tokens; null if it is not part of a "
            "series.",
        ),
    },
)

LAYER_SIZES = Table(
    grain="One row per model and layer: its parameters by sub-layer, and its kind.",
    columns={
        **MODEL_KEYS,
        "layer": Column("int64", "Index of the layer, from 0."),
        "attention_parameters": Column("int64", "Parameters of its attention."),
        "mlp_parameters": Column("int64", "Parameters of its MLP, including all experts."),
        "other_parameters": Column("int64", "Its other parameters, such as those of norms."),
        "active_mlp_parameters": Column(
            "int64",
            "Parameters of its MLP that are active for one token: those of the chosen experts.",
        ),
        "kind": Column(
            "int64",
            "Index of the first layer of the same kind (full or sliding attention, positions, "
            "experts); 0 for all layers if they are alike.",
        ),
    },
)

CALIBRATIONS = Table(
    grain=(
        "One row per model and calibration: the samples on which units are scored and patches "
        "fitted, tokenised for that model. Never test data."
    ),
    columns={
        **CALIBRATION_KEYS,
        "kind": Column(
            "string",
            "choices (multiple choice), generated (answer under teacher forcing), text, or mixed.",
        ),
        "n_samples": Column("int64", "Number of samples."),
        "n_tokens": Column(
            "int64",
            "Tokens of context and gold answer, summed over samples; wrong choices are not "
            "counted.",
        ),
        "n_cut": Column(
            "int64",
            "Number of samples whose prompt exceeds the model's context and was truncated on the "
            "left, as in lm-eval.",
        ),
        "n_undecided": Column(
            "int64",
            "Number of documents left out because a right choice has the same tokens as a wrong "
            "one, so that every model scores them equally. The tokenizer may lack a script, or "
            "fold case. Null in tables of earlier versions.",
        ),
        "chance_accuracy": Column(
            "double",
            "Accuracy of guessing, 0 to 1: mean over samples of the share of right choices; 1 / "
            "vocabulary for text; 0 for generated answers.",
        ),
        "choice_score": Column(
            "string",
            "How accuracy and margin compare choices: acc_norm (log-likelihood divided by "
            "length) or acc.",
        ),
        "source": Column(
            "string",
            "lm-eval tasks or groups (separated by commas), text or file that the samples come "
            "from.",
        ),
        "split": Column(
            "string",
            "Split that was sampled; null for a file of choices or a text without splits.",
        ),
        "seed": Column("int64", "Seed of the sampling."),
        "n_asked": Column(
            "int64",
            "Number of questions that the model was asked, if the samples have its own answers "
            "(`answers: model`); null for answers of the data, as are the next two columns.",
        ),
        "n_right": Column(
            "int64",
            "Number of its answers that are right by exact match; null for texts and tasks "
            "without exact match.",
        ),
        "temperature": Column(
            "double",
            "Sampling temperature of its answers; 0 for greedy decoding.",
        ),
        "replicate_of": Column(
            "string",
            "Label that it shares with its replicates (`group` in the configuration); null "
            "without replicates.",
        ),
    },
)

SHARED_DOCUMENTS = Table(
    grain=(
        "One row per calibration and benchmark that its variants are measured by: how many "
        "documents of the calibration are similar to a test document. A document equal to one "
        "stops the run, so none is counted here."
    ),
    columns={
        **CALIBRATION_KEYS,
        "task": Column("string", "Task or perplexity text of the benchmark."),
        "documents": Column("int64", "Documents of the calibration."),
        "tested": Column("int64", "Test documents of the benchmark."),
        "near": Column(
            "int64",
            "Documents of the calibration that are near duplicates of a test document: they "
            "share at least half of the 13-word n-grams of the shorter of the two. The run stops "
            "if there are more than one of them and more than 1 % of the documents.",
        ),
        "sharing": Column(
            "int64",
            "Documents that share at least one 13-word n-gram with a test document, including "
            "near duplicates.",
        ),
    },
)

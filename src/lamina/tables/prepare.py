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
        "parameters": Column("int64", "Number of parameters in the weight files (tied ones once)."),
        "weights_bytes": Column("int64", "Size of the weights as they are loaded, in bytes."),
        "head_parameters": Column(
            "int64",
            "Those of them that give the logits, which every token reads. Null in tables of "
            "earlier versions, as the next two.",
        ),
        "decoder": Column(
            "string",
            "model_type of the decoder, which in a model of images and text is another one.",
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
            "Training that the model is a checkpoint of; null for a model by itself.",
        ),
        "step": Column(
            "int64",
            "How far that training was, in its steps or tokens; null for a model by itself.",
        ),
    },
)

LAYER_SIZES = Table(
    grain="One row per model and layer: its parameters by what can be removed, and its kind.",
    columns={
        **MODEL_KEYS,
        "layer": Column("int64", "Index of the layer, from 0."),
        "attention_parameters": Column("int64", "Parameters of its attention."),
        "mlp_parameters": Column("int64", "Parameters of its MLP, of all experts."),
        "other_parameters": Column("int64", "Its other parameters, those of norms."),
        "active_mlp_parameters": Column(
            "int64", "Parameters of its MLP that one token goes through: of chosen experts."
        ),
        "kind": Column(
            "int64",
            "First layer of the same kind: full or sliding attention, positions, experts. 0 for "
            "all layers of a model whose layers are alike.",
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
            "Tokens of context and gold answer, summed over the samples; wrong choices are not "
            "counted.",
        ),
        "n_cut": Column(
            "int64",
            "Number of samples whose prompt is longer than the model's context and lost its "
            "oldest tokens, as in lm-eval.",
        ),
        "n_undecided": Column(
            "int64",
            "Number of documents that are left out: a right choice has the tokens of a wrong one, "
            "so that every model scores both the same. The tokenizer may lack a script, or fold "
            "case. Null in tables of earlier versions.",
        ),
        "chance_accuracy": Column(
            "double",
            "Accuracy of guessing, 0 to 1: mean over samples of the share of right choices; 1 / "
            "vocabulary for text; 0 for generated answers.",
        ),
        "choice_score": Column(
            "string",
            "How accuracy and margin compare choices: acc_norm (log-likelihood by length) or acc; "
            "as configured.",
        ),
        "source": Column(
            "string",
            "lm-eval task or group of tasks (several: comma-separated), text or file the samples "
            "come from.",
        ),
        "split": Column(
            "string",
            "Split of the source that was sampled; null for a file of choices or a text without "
            "splits.",
        ),
        "seed": Column("int64", "Seed of the sampling."),
        "n_asked": Column(
            "int64",
            "Number of questions that the model was asked, if samples hold its own answers "
            "(`answers: model`); null for those of the data, as the next two.",
        ),
        "n_right": Column(
            "int64",
            "Number of its answers that exact match calls right; null for texts and tasks without "
            "exact match.",
        ),
        "temperature": Column(
            "double",
            "Temperature at which it wrote; 0 for the likeliest tokens.",
        ),
        "replicate_of": Column(
            "string",
            "Label that it shares with its replicates, `group` in the configuration; null without.",
        ),
    },
)

SHARED_DOCUMENTS = Table(
    grain=(
        "One row per calibration and benchmark that its variants are measured by: how many "
        "documents of the calibration have their like among the test documents. An equal one is "
        "refused, so there are none here."
    ),
    columns={
        **CALIBRATION_KEYS,
        "task": Column("string", "Task or perplexity text of the benchmark."),
        "documents": Column("int64", "Documents of the calibration."),
        "tested": Column("int64", "Test documents of the benchmark."),
        "near": Column(
            "int64",
            "Documents of the calibration that are near duplicates of a test document: they have "
            "at least half of the runs of 13 words of the shorter of the two. More than 1 % of "
            "the documents are refused.",
        ),
        "sharing": Column(
            "int64",
            "Documents that share at least one run of 13 words with a test document, near ones "
            "included.",
        ),
    },
)

"""The tables of what a study begins with: models, calibrations, and what these share with test documents."""

from lamina.tables.columns import CALIBRATION, MODEL

MODELS = MODEL.table("""
One row per model: what was loaded, and how large it is.

family (string): Architecture family (model_type of transformers).
n_layers (int64): Number of decoder layers, L.
hidden_size (int64): Width of the residual stream, C, in channels.
vocabulary (int64): Number of token ids.
parameters (int64): Number of parameters in the weight files (tied ones once).
weights_bytes (int64): Size of the weights as they are loaded, in bytes.
dtype (string): Floating point type to load the weights in, as configured; auto takes that of the files.
source (string): Local folder or hub id.
revision (string): Revision of a hub model; null for a local folder.
weights_sha256 (string): SHA-256 over the weight files: which weights, exactly.
series (string): Training that the model is a checkpoint of; null for a model by itself.
step (int64): How far that training was, in its steps or tokens; null for a model by itself.
""")

CALIBRATIONS = CALIBRATION.table("""
One row per model and calibration: the samples on which units are scored and patches fitted, tokenised for that model.
Never test data.

kind (string): choices (multiple choice), generated (answer under teacher forcing), text, or mixed.
n_samples (int64): Number of samples.
n_tokens (int64): Tokens of context and gold answer, summed over the samples; wrong choices are not counted.
n_cut (int64): Number of samples whose prompt is longer than the model's context and lost its oldest tokens, as in
    lm-eval.
n_undecided (int64): Number of documents that are left out: a right choice has the tokens of a wrong one, so that every
    model scores both the same. The tokenizer may lack a script, or fold case. Null in tables of earlier versions.
chance_accuracy (double): Accuracy of guessing, 0 to 1: mean over samples of the share of right choices; 1 / vocabulary
    for text; 0 for generated answers.
choice_score (string): How accuracy and margin compare choices: acc_norm (log-likelihood by length) or acc; as
    configured.
source (string): lm-eval task or group of tasks (several: comma-separated), text or file the samples come from.
split (string): Split of the source that was sampled; null for a file of choices or a text without splits.
seed (int64): Seed of the sampling.
n_asked (int64): Number of questions that the model was asked, if samples hold its own answers (`answers: model`); null
    for those of the data, as the next two.
n_right (int64): Number of its answers that exact match calls right; null for texts and tasks without exact match.
temperature (double): Temperature at which it wrote; 0 for the likeliest tokens.
replicate_of (string): Label that it shares with its replicates, `group` in the configuration; null without.
""")

SHARED_DOCUMENTS = CALIBRATION.table("""
One row per calibration and benchmark that its variants are measured by: how many documents of the calibration have
their like among the test documents. An equal one is refused, so there are none here.

task (string): Task or perplexity text of the benchmark.
documents (int64): Documents of the calibration.
tested (int64): Test documents of the benchmark.
near (int64): Documents of the calibration that are near duplicates of a test document: they have at least half of the
    runs of 13 words of the shorter of the two. More than 1 % of the documents are refused.
sharing (int64): Documents that share at least one run of 13 words with a test document, near ones included.
""")

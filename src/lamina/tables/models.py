"""Table `models`, from the manifests."""

from lamina.tables.columns import INT, MODEL, STRING, Columns

GRAIN = "One row per model: what was loaded, and how large it is."

COLUMNS: Columns = MODEL | {
    "family": (STRING, "Architecture family (model_type of transformers)."),
    "n_layers": (INT, "Number of decoder layers, L."),
    "hidden_size": (INT, "Width of the residual stream, C, in channels."),
    "vocabulary": (INT, "Number of token ids."),
    "parameters": (INT, "Number of parameters in the weight files (tied ones once)."),
    "weights_bytes": (INT, "Size of the weights in their files, in bytes."),
    "dtype": (STRING, "Floating point type to load the weights in, as configured; auto takes that of the files."),
    "source": (STRING, "Local folder or hub id."),
    "revision": (STRING, "Revision of a hub model; null for a local folder."),
    "weights_sha256": (STRING, "SHA-256 over the weight files: which weights, exactly."),
    "series": (STRING, "Training that the model is a checkpoint of; null for a model by itself."),
    "step": (INT, "How far that training was, in its steps or tokens; null for a model by itself."),
}

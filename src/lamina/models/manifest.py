"""The manifest that every later job trusts: what a model folder holds, read without its weights.

Weights are read from safetensors only. Code in a model folder is refused unless the configuration
allows it for that model.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina.errors import LaminaError, explain_machine_error
from lamina.models import checkpoint, sizes
from lamina.models.digests import describe_files
from lamina.models.gguf import is_gguf
from lamina.options.models import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Files to download: no checkpoints in other formats (pickles, GGUF, ONNX). Card and licence go into
# an export.
_HUB_FILES = [
    "*.safetensors",
    "*.json",
    "*.model",
    "*.tiktoken",
    "*.txt",
    "*.jinja",
    "*.py",
    "README.md",
    "LICENSE*",
    "NOTICE*",
]
# The same weights a second time, in the format of the model's authors or for another program.
_UNREAD_HUB_FILES = ["*/*.safetensors", "consolidated*"]
# Settings of a model's entry that later jobs read from the manifest.
_COPIED_SETTINGS = (
    "trust_remote_code",
    "chat_template",
    "fewshot_as_turns",
    "system_prompt",
    "template_arguments",
)


def find_model(name: str, entry: Model, root: Path) -> Path:
    """The folder of a model.

    A local folder is used as it is; a model of the hub is downloaded once into the cache of
    Hugging Face.

    Raises LaminaError if the folder is missing, or the hub knows no such model or revision, or does
    not let this user have it.
    """
    source = entry.source
    if (root / source).is_dir():
        return root / source
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise LaminaError(
            f"models.{name}.source: there is no folder '{source}'. Write the path of a folder that "
            "holds config.json and *.safetensors, or a hub id of the form 'organisation/model'."
        )
    return _download_model(name, entry)


def _download_model(name: str, entry: Model) -> Path:
    from httpx2 import HTTPError
    from huggingface_hub import errors, snapshot_download

    source = entry.source
    where = f"models.{name}.source: '{source}'"
    try:
        folder = snapshot_download(
            source,
            revision=entry.revision,
            allow_patterns=_HUB_FILES,
            ignore_patterns=_UNREAD_HUB_FILES,
        )
    except errors.GatedRepoError as error:
        raise LaminaError(
            f"{where} is gated: accept its licence on the hub's page, then run `hf auth login` (or "
            "set HF_TOKEN)."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise LaminaError(
            f"models.{name}.revision: '{source}' has no revision '{entry.revision}'. Write an "
            "existing one."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise LaminaError(
            f"{where} is neither a local folder nor a model on the hub (or it is private and no "
            "token is set). Check the spelling, or run `hf auth login`."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise LaminaError(
            f"{where} is not a local folder, and the hub cannot be reached "
            f"({type(error).__name__}). Download it where there is a network (`hf download`) and "
            "write its folder here."
        ) from error
    except (HTTPError, OSError) as error:
        if explain_machine_error(str(error)):
            raise
        raise LaminaError(
            f"models.{name}.source: the download of '{source}' broke off "
            f"({type(error).__name__}). Start again: complete files are kept. If it breaks off "
            "again, download it (`hf download`) and write its folder here."
        ) from error
    return Path(folder)


def describe_model(name: str, entry: Model, folder: Path) -> dict[str, Any]:
    """The manifest of the model in `folder`.

    Returns dict:
        path: relative to the current folder if it is in there
        source, revision
        weights_sha256
        settings_sha256: of its configuration, tokenizer and code
        files: size and time of each
        n_layers: L
        hidden_size: C
        vocabulary
        family: the `model_type` of its config.json
        parameters
        layer_parameters: of one layer, on average, that one token meets
        layers: of each layer, the columns of table `layer_sizes`
        head_parameters: of the matrix that gives the logits
        attention_share: of attention in the sub-layers of its layers, by cost
        weights_bytes: of the model as it is loaded
        loaded_dtype: of the weights as they are loaded
        decoder: the `model_type` of the decoder, which in a model of images and text is another
        runs_code_in_vllm: whether vLLM can run an export with code
        dtype: as in the entry; for `auto` of a GGUF file, that of `_choose_gguf_dtype`
        trust_remote_code, and how prompts are written: as in the entry
        series, step: only for a checkpoint of a training

    Raises LaminaError if config or weights are missing or incomplete, the model cannot be loaded
    or judged, code is present but not allowed, or the number of layers or the family is not what
    the entry says.
    """
    from lamina.models.export.runtimes import explain_vllm_obstacle
    from lamina.models.structure import layers_of, text_config

    where = f"models.{name}.source"
    settings = checkpoint.read_settings(folder, where, entry.source)
    _check_code_allowed(name, entry, folder, settings)
    checkpoint.check_loadable(folder, settings, where, entry.source)
    tensors = checkpoint.read_weights(folder, where)
    checkpoint.check_floating(tensors, folder, settings, where)

    decoder = checkpoint.decoder_settings(settings)
    # The classes of transformers know the settings that a sparse config.json leaves out.
    model = load_skeleton(folder, entry.source, entry.trust_remote_code)
    config = text_config(model)
    n_layers = len(layers_of(model))
    _check_entry(name, entry, n_layers, settings.get("model_type"))

    n_parameters = sum(weight.numel() for weight in model.parameters())
    dtype: str = entry.dtype
    if dtype == "auto" and is_gguf(entry.source):
        dtype = _choose_gguf_dtype(checkpoint.loaded_dtype("auto", decoder, tensors))
    width = checkpoint.stored_width(dtype, decoder, tensors)
    counted = sizes.count_sizes(model, width)
    manifest: dict[str, Any] = {
        "path": _relative_path(folder),
        "source": entry.source,
        "revision": entry.revision,
        **describe_files(folder),
        "n_layers": n_layers,
        "hidden_size": config.hidden_size,
        "vocabulary": config.vocab_size,
        "family": settings.get("model_type"),
        "parameters": n_parameters,
        "layer_parameters": counted.layer_parameters,
        "layers": _describe_layers(model, counted),
        "head_parameters": counted.head,
        "attention_share": {cost: counted.share(cost) for cost in ("parameters", "latency")},
        "weights_bytes": n_parameters * width,
        "loaded_dtype": checkpoint.loaded_dtype(dtype, decoder, tensors),
        "decoder": config.model_type,
        "runs_code_in_vllm": not explain_vllm_obstacle(model),
    }
    for key in _COPIED_SETTINGS:
        manifest[key] = getattr(entry, key)
    manifest["dtype"] = dtype
    if entry.series is not None:
        manifest["series"] = entry.series
        manifest["step"] = entry.step
    return manifest


def _choose_gguf_dtype(stored_dtype: str) -> str:
    """The default dtype for computing with a GGUF file.

    It is bfloat16 if the checkpoint is stored in it and this machine multiplies in it, else
    float32.
    """
    from lamina.models.devices import multiplies_bfloat16

    is_native = stored_dtype == "bfloat16" and multiplies_bfloat16()
    return "bfloat16" if is_native else "float32"


def _describe_layers(model: "PreTrainedModel", counted: sizes.Sizes) -> list[dict[str, int]]:
    """The parameters of each layer, and the first layer of its kind."""
    from lamina.models.cutting import kinds_by_layer
    from lamina.models.structure import text_config

    described = counted.describe_layers()
    kinds = kinds_by_layer(text_config(model), len(described))
    return [{**layer, "kind": kind} for layer, kind in zip(described, kinds, strict=True)]


def _check_code_allowed(name: str, entry: Model, folder: Path, settings: Mapping[str, Any]) -> None:
    has_code = bool(settings.get("auto_map")) or any(folder.glob("modeling_*.py"))
    if has_code and not entry.trust_remote_code:
        raise LaminaError(
            f"models.{name}.source: {entry.source} brings its own Python code, which lamina does "
            "not run unless told to. If you trust it, write `trust_remote_code: true` under "
            f"models.{name}."
        )


def _check_entry(name: str, entry: Model, n_layers: int, family: str | None) -> None:
    """Refuse an entry that states another depth or family than the model has."""
    if entry.layers not in (None, n_layers):
        raise LaminaError(
            f"models.{name}.layers: says {entry.layers}, but the model has {n_layers}. Write "
            f"{n_layers}."
        )
    if entry.family not in (None, family):
        raise LaminaError(
            f"models.{name}.family: says {entry.family}, but the model is {family}. Write {family}."
        )


def _relative_path(folder: Path) -> str:
    """The path as the configuration has it, so that a copied project reads its own model."""
    project = Path.cwd()
    return str(folder.relative_to(project) if folder.is_relative_to(project) else folder)


def auto_class(config: Any) -> Any:
    """The class of transformers that loads a model.

    It is one for images and text if the configuration names such a class, else one for decoders.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    multimodal_class = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    if multimodal_class in (config.architectures or ()):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def load_skeleton(folder: str | Path, source: str, trust_remote_code: bool) -> "PreTrainedModel":
    """The model that a folder describes, with no weights (meta tensors) and nothing quantised.

    Raises LaminaError if transformers cannot build it from config.json.
    """
    import torch
    from transformers import AutoConfig

    with explaining_load_errors(source, folder):
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
        with torch.device("meta"):
            model: PreTrainedModel = auto_class(config).from_config(
                config, trust_remote_code=trust_remote_code
            )
    return model


@contextmanager
def explaining_load_errors(name: str, folder: str | Path) -> Iterator[None]:
    """Turn an error of transformers on a folder into a LaminaError that says what to correct."""
    try:
        yield
    except (MemoryError, LaminaError):
        raise
    except Exception as error:  # a folder can make transformers raise anything
        # transformers goes on with a list of all the types that it knows.
        own_words, _, _ = str(error).partition("Model type should be one of")
        message = " ".join(own_words.split())[:500]
        raise LaminaError(
            f"the model '{name}' in {folder} does not load: {type(error).__name__}: {message} "
            f"{_remedy(name, error)}"
        ) from error


def _remedy(name: str, error: Exception) -> str:
    if str(name).endswith(".gguf"):
        return "Convert it again, or use the model's checkpoint with safetensors weights."
    if isinstance(error, ImportError):
        return "Install what it asks for, or correct its config.json."
    if isinstance(error, OSError):
        return "Download it again, completely."
    return "Correct its config.json, or write a model that this version of transformers knows."

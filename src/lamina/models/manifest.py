"""The manifest that every later job trusts: what a model folder holds, read without loading a weight.

Weights are read from safetensors only. Code in a model folder is refused unless the config allows it for that model.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina.config.models import Model
from lamina.errors import LaminaError, at_end, cause
from lamina.models import checkpoint, gguf, sizes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What is downloaded: no checkpoints in other formats (pickles, GGUF, ONNX). Card and licence go into an export.
_HUB_FILES = [
    "*.safetensors",
    "*.json",
    "*.model",
    "*.txt",
    "*.jinja",
    "*.py",
    "README.md",
    "LICENSE*",
    "NOTICE*",
]
_LAYER = re.compile(r"[.]\d+[.]")  # tensors of a layer have its number in their name
_SETTINGS = {".json", ".model", ".py", ".jinja", ".txt"}
_PIECE = 1 << 16  # bytes


def find_model(name: str, entry: Model, root: Path) -> Path:
    """Folder of a model: a local one as it stands, a hub one downloaded once into the Hugging Face cache.

    Raises LaminaError if the folder is missing, or the hub knows no such model or revision, or does not let this user
    have it.
    """
    source = entry.source
    if (root / source).is_dir():
        return root / source
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise LaminaError(
            f"models.{name}.source: there is no folder '{source}'. Write the path of a folder that holds config.json "
            "and *.safetensors, or a hub id of the form 'organisation/model'."
        )
    from httpx2 import HTTPError
    from huggingface_hub import errors, snapshot_download

    where = f"models.{name}.source: '{source}'"
    try:
        return Path(snapshot_download(source, revision=entry.revision, allow_patterns=_HUB_FILES))
    except errors.GatedRepoError as error:
        raise LaminaError(
            f"{where} is gated: accept its licence on the hub's page, then run `hf auth login` (or set HF_TOKEN)."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise LaminaError(
            f"models.{name}.revision: '{source}' has no revision '{entry.revision}'. Write an existing one."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise LaminaError(
            f"{where} is neither a local folder nor a model on the hub (or it is private and no token is set). "
            "Check the spelling, or run `hf auth login`."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise LaminaError(
            f"{where} is not a local folder, and the hub cannot be reached ({type(error).__name__}). Download it "
            "where there is a network (`hf download`) and write its folder here."
        ) from error
    except (HTTPError, OSError) as error:
        if cause(str(error)):
            raise
        raise LaminaError(
            f"models.{name}.source: the download of '{source}' broke off ({type(error).__name__}). Start again: files "
            "that are whole stay. If it breaks off again, download it (`hf download`) and write its folder here."
        ) from error


def describe(name: str, entry: Model, folder: Path) -> dict[str, Any]:
    """Manifest of the model in `folder`.

    Returns dict: path (relative to the current folder if it is in there), source, revision, weights_sha256,
    settings_sha256 (of its configuration, tokenizer and code), files (size and time of each), n_layers L, hidden_size
    C, vocabulary, family (the config's `model_type`), parameters, layer_parameters (of one layer, on average, that one
    token meets), attention_share (of attention in the halves of its layers, by cost), weights_bytes (of the model as
    it is loaded), dtype, trust_remote_code, how prompts are written; for a checkpoint of a training also series, step.

    Raises LaminaError if config or weights are missing or cut off, the model is none that can be loaded or judged, code
    is present but not allowed, or the number of layers or the family is not the one that the config file promises.
    """
    where = f"models.{name}.source: {entry.source}"
    config = checkpoint.read_settings(folder, f"models.{name}.source", entry.source)
    text_config = checkpoint.decoder_settings(config)
    if not entry.trust_remote_code and (
        config.get("auto_map") or any(folder.glob("modeling_*.py"))
    ):
        raise LaminaError(
            f"{where} brings its own Python code, which lamina does not run unless told to. If you trust it, write "
            f"`trust_remote_code: true` under models.{name}."
        )
    checkpoint.check_loadable(folder, config, f"models.{name}.source", entry.source)
    tensors = checkpoint.read_weights(folder, f"models.{name}.source")
    checkpoint.check_names(tensors, folder, config, f"models.{name}.source")
    keys = checkpoint.LAYER_KEYS
    n_layers = checkpoint.stated_depth(text_config)
    if n_layers is None:
        raise LaminaError(
            f"{where}: its config.json does not say how many layers it has ({', '.join(keys)})."
        )
    family = config.get("model_type")
    if _looks_both_ways(config):
        raise LaminaError(
            f"{where}: a '{family}' attends to later tokens too, so it is no decoder whose layers could be judged by "
            "what it predicts. Choose a causal language model (or, if it was trained as one, write `is_decoder: true` "
            "in its config.json)."
        )
    if entry.layers not in (None, n_layers):
        raise LaminaError(
            f"models.{name}.layers: says {entry.layers}, but the model has {n_layers}. Write {n_layers}."
        )
    if entry.family not in (None, family):
        raise LaminaError(
            f"models.{name}.family: says {entry.family}, but the model is {family}. Write {family}."
        )
    model = skeleton(folder, entry.source, entry.trust_remote_code)
    count = sum(each.numel() for each in model.parameters())
    width = checkpoint.stored_width(entry.dtype, text_config, tensors)
    counted = sizes.count_sizes(model, width)
    here = Path.cwd()
    same = (
        "dtype",
        "trust_remote_code",
        "chat_template",
        "fewshot_as_turns",
        "system_prompt",
        "template_arguments",
    )
    return {
        # As the configuration has it, so that a copied project reads its own model.
        "path": str(folder.relative_to(here) if folder.is_relative_to(here) else folder),
        "source": entry.source,
        "revision": entry.revision,
        **facts(folder),
        "n_layers": n_layers,
        "hidden_size": _first(text_config, ("hidden_size", "n_embd", "d_model")),
        "vocabulary": text_config.get("vocab_size"),
        "family": family,
        "parameters": count,
        "layer_parameters": layer_parameters(model) // n_layers,
        "attention_share": {cost: counted.share(cost) for cost in ("parameters", "latency")},
        "weights_bytes": count * width,
        **{key: getattr(entry, key) for key in same},
        **({} if entry.series is None else {"series": entry.series, "step": entry.step}),
    }


def _looks_both_ways(config: dict[str, Any]) -> bool:
    """Whether a configuration, or the default of its type, says that the model is only an encoder.

    GPT-NeoX has the flag `is_decoder`, false in all its folders, and is always a decoder. So the flag counts only for
    types that can fill masked words in; rule check_model tries all models.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    family = str(config.get("model_type"))
    if family not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return False
    decoder, both = (
        config.get(name, getattr(CONFIG_MAPPING[family], name, None))
        for name in ("is_decoder", "is_encoder_decoder")
    )
    return decoder is False and not both


def auto_class(config: Any) -> Any:
    """The class that loads a model: one for images and text if its configuration names such a class, else a decoder."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    whole = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    return (
        AutoModelForImageTextToText
        if whole in (config.architectures or ())
        else AutoModelForCausalLM
    )


def skeleton(folder: str | Path, source: str, trust_remote_code: bool) -> "PreTrainedModel":
    """The model that a folder describes, with no weights (meta tensors) and nothing quantised.

    Raises LaminaError if transformers cannot build it from config.json.
    """
    import torch
    from transformers import AutoConfig

    with loading(source, folder):
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
        with torch.device("meta"):
            built: PreTrainedModel = auto_class(config).from_config(
                config, trust_remote_code=trust_remote_code
            )
    return built


def layer_parameters(model: "PreTrainedModel") -> int:
    """The parameters of all layers that one token meets: of stacked experts, as many as it chooses."""
    used = sizes.count_active(model)
    return round(
        sum(used[weight] for name, weight in model.named_parameters() if _LAYER.search(name))
    )


@contextmanager
def loading(name: str, folder: str | Path) -> Iterator[None]:
    """Turn what transformers says of a folder that it cannot load into a LaminaError that says what to correct."""
    try:
        yield
    except (MemoryError, LaminaError):
        raise
    except Exception as error:  # a folder can make transformers raise anything
        # transformers goes on with a list of all the types that it knows.
        message = " ".join(str(error).split("Model type should be one of")[0].split())[:500]
        if str(name).endswith(".gguf"):
            remedy = "Convert it again, or take the model's checkpoint with safetensors weights."
        elif isinstance(error, ImportError):
            remedy = "Install what it asks for, or correct its config.json."
        elif isinstance(error, OSError):
            remedy = "Download it again, completely."
        else:
            remedy = (
                "Correct its config.json, or write a model that this version of transformers knows."
            )
        what = f"the model '{name}' in {folder} does not load: {type(error).__name__}: {message} {remedy}"
        raise LaminaError(what) from error


def _first(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if key in config), None)


def facts(folder: Path) -> dict[str, Any]:
    """SHA-256 of the weights in a model's folder and of its configuration, tokenizer and code; sizes and times."""
    before, (weights, others) = _stamps(folder), files(folder)
    hashes = {"weights_sha256": _sha256(weights), "settings_sha256": _sha256(others)}
    if _stamps(folder) != before:
        raise LaminaError(
            f"the files in {folder} changed while they were read. Start again once they are complete."
        )
    return hashes | {"files": before}


def check_files(manifest: Mapping[str, Any]) -> None:
    """Refuse a model, by a LaminaError, whose files are not those of its manifest, now and when the work is done."""
    folder, of = Path(manifest["path"]), f"the model '{manifest['source']}'"
    if not folder.is_dir():
        raise LaminaError(
            f"{of} is not in {folder.absolute()} any more. Put it back, or correct its `source`."
        )

    def same(what: str, before: Any, now: Any) -> None:
        if before != now:
            raise LaminaError(
                f"the {what} of {of} in {folder} are not what they were when it was prepared. Put them back, or delete "
                "its manifest.json under results/models and run again, which measures all of it anew."
            )

    if (stamps := _stamps(folder)) != manifest.get("files"):
        found = facts(folder)
        for key, what in (
            ("weights_sha256", "weights"),
            ("settings_sha256", "configuration or tokenizer"),
        ):
            same(what, manifest.get(key, found[key]), found[key])
    at_end(lambda: same("files", stamps, _stamps(folder)))


def files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The weights in a model's folder, and its configuration, tokenizer and code."""
    others = sorted(
        path for path in folder.iterdir() if path.suffix in _SETTINGS and path.is_file()
    )
    return checkpoint.weight_files(folder), others


def _stamps(folder: Path) -> dict[str, list[int]]:
    stats = {path.name: path.stat() for paths in files(folder) for path in paths}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _sha256(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def fingerprint(folder: Path) -> str | None:
    """A hash that changes when a local model changes, but not when it is only touched; None if there is no folder.

    It is cheap enough for every start of the workflow. Small files are read whole. Of large files it takes the size and
    both ends, where a safetensors file keeps its header and its last tensors.
    """
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in {".safetensors", *_SETTINGS} and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name}:{size}:".encode())
            with path.open("rb") as file:
                if size > 1 << 25:
                    digest.update(file.read(1 << 21))
                    file.seek(-(1 << 21), 2)
                digest.update(file.read())
    return digest.hexdigest()


def checkpoint_name(source: str | Path, dtype: str) -> str:
    """The name of the checkpoint that a GGUF file or a quantised folder becomes: a hash of its content, and the dtype.

    So a model that has another name, or whose files have one, is not dequantised again. Of a large file it takes the
    size and 64 pieces that are spread over all of it, since two trainings of one model differ everywhere but in size.
    """
    path = Path(source)
    if path.is_dir():
        return f"{str(fingerprint(path))[:16]}-{dtype}"
    digest = hashlib.sha256()
    tokenizer = [path.with_name(name) for name in ("tokenizer.json", "tokenizer_config.json")]
    for part in (*gguf.shard_files(path), *(file for file in tokenizer if file.is_file())):
        size = part.stat().st_size
        digest.update(f"{size}:".encode())
        with part.open("rb") as file:
            for position in range(0, size, max(size // 64, _PIECE)):
                file.seek(position)
                digest.update(file.read(_PIECE))
            file.seek(max(size - _PIECE, 0))
            digest.update(file.read())
    return f"{digest.hexdigest()[:16]}-{dtype}"

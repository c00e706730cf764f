"""What local files tell before the first job: model folders, texts and questions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina.config.calibrations import CORPUS, Choices, Text
from lamina.config.configuration import Configuration
from lamina.config.models import Model
from lamina.errors import LaminaError

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")


def described(name: str, model: Model, root: Path) -> Model:
    """The entry of a model with the layers and the family that its folder tells; a hub model stays as it is.

    Raises
    ------
    LaminaError
        If there is no such folder, or it is no model, or says something else than the entry.
    """
    where, source = f"models.{name}.source", model.source
    folder = root / source
    if not folder.is_dir():
        _check_hub_id(where, model)
        return model
    file = folder / "config.json"
    if not file.is_file():
        raise LaminaError(
            f"{where}: the folder '{source}' has no config.json, so it is no Hugging Face model. Write the folder that "
            "holds config.json and *.safetensors (a converted checkpoint, or a snapshot folder of the hub cache)."
        )
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise LaminaError(f"{where}: '{source}/config.json' is not JSON ({error}). Restore the file.") from error
    decoder = {**settings, **settings.get("text_config", {})}  # multimodal checkpoints nest the decoder's settings
    layers = next((decoder[key] for key in _LAYER_KEYS if isinstance(decoder.get(key), int)), None)
    told: dict[str, Any] = {"layers": layers, "family": settings.get("model_type")}
    for key, found in told.items():
        stated = getattr(model, key)
        if found and stated and found != stated:
            raise LaminaError(
                f"models.{name}.{key}: '{source}/config.json' says {found}, not {stated}. Leave `{key}` out."
            )
    return model.model_copy(update={key: found or getattr(model, key) for key, found in told.items()})


def _check_hub_id(where: str, model: Model) -> None:
    source = model.source
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise LaminaError(
            f"{where}: there is no folder '{source}'. Write the path of a folder with config.json and safetensors "
            "weights, or a hub id of the form 'organisation/model' with its revision."
        )
    if not model.revision:
        raise LaminaError(
            f"{where}: there is no folder '{source}'. Write the path of a folder with config.json and safetensors "
            "weights; if it is a hub id, add `revision: <commit, tag or branch>`."
        )


def check(config: Configuration, root: Path) -> None:
    """Refuse what the files under `root` already show to be impossible; called last, with a configuration that fits.

    Raises
    ------
    LaminaError
        Naming the key and the file.
    """
    for where, path in _files(config):
        if not (root / path).is_file():
            form = (
                "a .jsonl file with query, choices and gold in each line"
                if where.endswith("choices")
                else f"a .json, .jsonl or .txt file, or {CORPUS}"
            )
            raise LaminaError(f"{where}: there is no file '{path}' in {root}. Write the path of {form}.")


def _files(config: Configuration) -> Iterator[tuple[str, str]]:
    """The key and the path of every local file that is named."""
    for name, entry in config.calibrations.items():
        if isinstance(entry, Choices):
            yield f"calibrations.{name}.choices", entry.choices
        if isinstance(entry, Text) and entry.text != CORPUS:
            yield f"calibrations.{name}.text", entry.text
    for name, task in config.benchmarks.tasks.items():
        if task.choices is not None:
            yield f"benchmarks.tasks.{name}.choices", task.choices
    for name, text in config.benchmarks.perplexity.items():
        if text.text != CORPUS:
            yield f"benchmarks.perplexity.{name}.text", text.text

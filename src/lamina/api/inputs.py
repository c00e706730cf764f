"""What a study begins with: a model, and the samples that it is studied on."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import model_validator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina import paths
from lamina.data.calibrations import CalibrationSamples
from lamina.data.prepare import prepare_calibration, select_own_answers
from lamina.errors import LaminaError
from lamina.models.checkpoint import is_quantised
from lamina.models.digests import checkpoint_name
from lamina.models.gguf import is_gguf
from lamina.models.load import choose_device, load_model, load_tokenizer
from lamina.models.manifest import describe_model, find_model
from lamina.options.calibrations import Calibration, Hub, Mixture, Task, Tasks, Text
from lamina.options.entry import Entry, Named
from lamina.options.explain import invalid
from lamina.options.healings import Healing
from lamina.options.models import Model
from lamina.options.repairs import Repair
from lamina.options.selectors import Selector

KEYS_OF_STUDIES = {"checkpoints", "group", "replicates"}


class NamedEntries(Entry):
    """The sections of a configuration whose entries are options of a function.

    The messages about a wrong option are those of the configuration.
    """

    models: Named[Model] = {}
    calibrations: Named[Calibration] = {}
    selectors: Named[Selector] = {}
    repairs: Named[Repair] = {}
    healings: Named[Healing] = {}

    @model_validator(mode="after")
    def _refuse_keys_of_studies(self) -> Self:
        """Refuse keys that expand one entry into several, since a function returns only one."""
        for section in type(self).model_fields:
            for name, entry in getattr(self, section).items():
                for key in sorted(KEYS_OF_STUDIES & entry.model_fields_set):
                    raise invalid(
                        "only works in the workflow, which makes several entries of one. Leave it "
                        "out, and call the function once for each.",
                        f"{section}.{name}.{key}",
                    )
        return self


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A base model that is open for a study."""

    name: str
    manifest: dict[str, Any]
    """What the model is: path, source, shapes and hashes (`lamina.models.manifest`)."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def n_layers(self) -> int:
        return int(self.manifest["n_layers"])

    def __repr__(self) -> str:
        dtype = str(self.model.dtype).removeprefix("torch.")
        return (
            f"PreparedModel({self.name!r}, {self.manifest['family']} of {self.n_layers} layers, "
            f"{dtype}, from {self.manifest['source']})"
        )


@dataclass(frozen=True, eq=False)
class PreparedCalibration:
    """Samples of one model on which units are scored, repairs fitted or variants trained."""

    name: str
    entry: Calibration
    """The calibration's options."""
    content: CalibrationSamples

    def __repr__(self) -> str:
        facts = self.content.facts
        return (
            f"PreparedCalibration({self.name!r}, {facts['n_samples']} samples, "
            f"{facts['n_tokens']} tokens, from {facts['source']})"
        )


def open_model(
    source: str | Path,
    *,
    name: str | None = None,
    device: str | torch.device | None = None,
    results: str | Path = paths.RESULTS,
    **options: Any,
) -> PreparedModel:
    """Open the model that is to be pruned, with its tokenizer.

    Args:
        source: A folder with config.json and safetensors weights, a .gguf file, or a hub id.
        name: What tables and exports call it; by default the last part of `source`.
        device: `cpu` or `cuda`; by default the layers are spread over all visible GPUs, if there
            are any.
        results: A GGUF file or a quantised folder is dequantised once, into `checkpoints` in this
            folder.
        **options: Keys of `models` in a configuration, such as `dtype`, `revision`,
            `trust_remote_code` and `chat_template`.

    Raises LaminaError if an option is not allowed, there is no such model, or it cannot be loaded.
    """
    name = name or _name_of(str(source))
    entries = NamedEntries.from_options({"models": {name: {"source": str(source), **options}}})
    entry = entries.models[name]
    folder = _find_folder(name, entry, Path(results))
    manifest = describe_model(name, entry, folder)
    model = load_model(manifest, None if device is None else choose_device(device))
    return PreparedModel(name, manifest, model, load_tokenizer(manifest, model.config))


def prepare(base: PreparedModel, name: str, **options: Any) -> PreparedCalibration:
    """Tokenise samples for a model: questions, tasks of lm-eval, or text. Never test data.

    Args:
        base: The model.
        name: How the options of other functions refer to this calibration.
        **options: Keys of `calibrations` in a configuration, such as `choices="support.jsonl"`,
            `task="arc_easy", limit=400`, or `text="book.txt", length=128`. With
            `answers="model"`, the model answers the questions itself.

    Raises LaminaError if an option is not allowed, data is missing or in another format, or samples
    do not fit the model.
    """
    entry = NamedEntries.from_options({"calibrations": {name: options}}).calibrations[name]
    if isinstance(entry, Mixture):
        raise LaminaError(
            f"calibrations.{name}: a mixture can only be prepared by the workflow. Write a "
            "configuration and run it (lamina run), or give other samples."
        )
    content = prepare_calibration(name, entry, base.manifest, Path.cwd())
    if isinstance(entry, Task | Tasks | Text | Hub) and entry.own:
        from lamina.evaluation.generation import answer_calibration

        answered = answer_calibration(name, entry, content, base.model, base.manifest, Path.cwd())
        vocabulary = int(base.manifest["vocabulary"])
        content = select_own_answers(f"calibrations.{name}", entry, answered, vocabulary)
    return PreparedCalibration(name, entry, content)


def _find_folder(name: str, entry: Model, results: Path) -> Path:
    """The folder of a model; for quantised weights, that of their dequantised checkpoint."""
    source = Path(entry.source)
    if not is_gguf(source):
        source = find_model(name, entry, Path.cwd())
        if not is_quantised(source):
            return source
    elif not source.is_file():
        raise LaminaError(f"models.{name}.source: there is no file {source}.")
    checkpoint = results / "checkpoints" / checkpoint_name(source, entry.dtype)
    if not checkpoint.is_dir():
        from lamina.models.dequantise import dequantise_model

        file = source / "config.json" if source.is_dir() else source
        dequantise_model(file, checkpoint, entry.dtype, f"models.{name}.source")
    return checkpoint


def _name_of(source: str) -> str:
    """A name for a model, taken from its source."""
    last_part = source.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return re.sub(r"[^\w.+-]+", "-", last_part).strip(".-") or "model"

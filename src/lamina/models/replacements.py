"""Replaces layers of a model by those of donors.

A donor is a sibling of the model: a fine-tune of the same base model. The edit `7=math:7` runs
layer 7 of the donor `math`.

A plan has a record of each donor (`replacements`, by name). A layer shares its tensors with the
donor, which is loaded once for all variants of a job.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import devices
from lamina.models.load import load_model, load_tokenizer
from lamina.models.structure import layers_of, text_config
from lamina.models.units import Replacement, Visit, parse_edit

Records = Mapping[str, Mapping[str, Any]]
"""What is known about each donor, by name."""

# Settings of positional embeddings, under the names that families give them.
_POSITION_KEYS = (
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "sliding_window",
    "layer_types",
)


def replacement_layers(
    base: PreTrainedModel, edits: Iterable[str], records: Records
) -> dict[Visit, nn.Module]:
    """The layers of donors that edits such as `7=math:7` run.

    Raises LaminaError if a donor is not a sibling of the base model.
    """
    layers: dict[Visit, nn.Module] = {}
    for edit in map(parse_edit, edits):
        if isinstance(edit, Replacement):
            layer = _donor_layer(base, edit.source, edit.donor, records)
            layers[Visit(edit.source, donor=edit.donor)] = layer
    return layers


def check_siblings(base: PreTrainedModel, manifest: Mapping[str, Any], records: Records) -> None:
    """Refuse donors that are not siblings of the model with this manifest.

    Raises LaminaError if shapes, positions or tokenizers differ; the message names what differs.
    """
    vocabulary = load_tokenizer(dict(manifest)).get_vocab()
    for name, record in records.items():
        _check_shapes(base, _load_sibling_of(base, record), name)
        if load_tokenizer(dict(record)).get_vocab() != vocabulary:
            raise _no_sibling(name, "its tokenizer has other tokens")


def _donor_layer(
    base: PreTrainedModel, layer_index: int, donor: str, records: Records
) -> nn.Module:
    sibling = _load_sibling_of(base, records[donor])
    _check_shapes(base, sibling, donor)
    return devices.follow_device(layers_of(sibling)[layer_index], layers_of(base)[layer_index])


def _check_shapes(base: PreTrainedModel, sibling: PreTrainedModel, donor: str) -> None:
    """Refuse a donor whose tensors have other names or shapes, or whose positions differ."""
    base_shapes = _shapes(base)
    donor_shapes = _shapes(sibling)
    for name in sorted({*base_shapes, *donor_shapes}):
        base_shape = base_shapes.get(name)
        donor_shape = donor_shapes.get(name)
        if base_shape != donor_shape:
            raise _no_sibling(donor, f"'{name}' is {donor_shape}, but {base_shape} in the model")

    for key in _POSITION_KEYS:
        base_value = getattr(text_config(base), key, None)
        donor_value = getattr(text_config(sibling), key, None)
        if base_value != donor_value:
            raise _no_sibling(donor, f"`{key}` is {donor_value}, but {base_value} in the model")


def _shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _no_sibling(donor: str, reason: str) -> LaminaError:
    return LaminaError(
        f"donors.{donor}: none of its layers can replace one of the model's: {reason}. Name a "
        "fine-tune of the same base model."
    )


def _load_sibling_of(base: PreTrainedModel, record: Mapping[str, Any]) -> PreTrainedModel:
    """The sibling with this manifest, in the base model's dtype and on its device."""
    dtype = str(base.dtype).removeprefix("torch.")
    manifest = {**record, "source": record["path"], "dtype": dtype}
    return _load_sibling(json.dumps(manifest, sort_keys=True), base.device)


@lru_cache(maxsize=4)
def _load_sibling(manifest: str, device: torch.device) -> PreTrainedModel:
    """The sibling with this manifest, which is given as JSON because a dict is no key of a cache."""
    return load_model(json.loads(manifest), device)

"""Layers of donors instead of a model's own.

A donor is a sibling of the model, a fine-tune of the same base model, or a merge of siblings:
base + λ Σ (sibling - base). The edit `7=math:7` runs layer 7 of the donor `math`.

A plan has a record of each donor (`replacements`, by name): a sibling's manifest, or a merge's
`weight` λ and the siblings that it is made `of`. A layer that is not merged shares its tensors with
the sibling, which is loaded once for all variants of a job.
"""

import copy
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
"""What is known of each donor, by name."""

# Settings that decide the positions of tokens, under the names that families give them.
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

    Raises LaminaError if a donor is no sibling of the base model.
    """
    layers: dict[Visit, nn.Module] = {}
    for edit in map(parse_edit, edits):
        if isinstance(edit, Replacement):
            layer = _donor_layer(base, edit.source, edit.donor, records)
            layers[Visit(edit.source, donor=edit.donor)] = layer
    return layers


def check_siblings(base: PreTrainedModel, manifest: Mapping[str, Any], records: Records) -> None:
    """Refuse donors that are no siblings of the model with this manifest.

    Raises LaminaError if shapes, positions or tokenizers differ; the message names what differs.
    """
    vocabulary = load_tokenizer(dict(manifest)).get_vocab()
    for name, record in records.items():
        if "of" in record:
            continue
        _check_shapes(base, _load_sibling_of(base, record), name)
        if load_tokenizer(dict(record)).get_vocab() != vocabulary:
            raise _no_sibling(name, "its tokenizer has other tokens")


def _donor_layer(
    base: PreTrainedModel, layer_index: int, donor: str, records: Records
) -> nn.Module:
    record = records[donor]
    base_layer = layers_of(base)[layer_index]
    if "of" not in record:
        sibling = _load_sibling_of(base, record)
        _check_shapes(base, sibling, donor)
        return devices.follow_device(layers_of(sibling)[layer_index], base_layer)

    sibling_layers = [_donor_layer(base, layer_index, name, records) for name in record["of"]]
    return _merge_layers(base_layer, sibling_layers, record["weight"])


@torch.no_grad()
def _merge_layers(
    base_layer: nn.Module, sibling_layers: Iterable[nn.Module], weight: float
) -> nn.Module:
    """A layer with base + λ Σ (sibling - base), where λ is `weight`, computed in float32."""
    merged = copy.deepcopy(base_layer)
    sibling_parameters = [dict(layer.named_parameters()) for layer in sibling_layers]
    for name, parameter in merged.named_parameters():
        base_values = parameter.float()
        change = torch.zeros_like(base_values)
        for parameters in sibling_parameters:
            change = change + (parameters[name].float().to(base_values.device) - base_values)
        parameter.copy_(base_values + weight * change)
    return merged


def _check_shapes(base: PreTrainedModel, sibling: PreTrainedModel, donor: str) -> None:
    """Refuse a donor whose tensors have other names or shapes, or whose positions differ."""
    base_shapes = _shapes(base)
    donor_shapes = _shapes(sibling)
    for name in sorted({*base_shapes, *donor_shapes}):
        base_shape = base_shapes.get(name)
        donor_shape = donor_shapes.get(name)
        if base_shape != donor_shape:
            raise _no_sibling(donor, f"'{name}' is {donor_shape} there and {base_shape} here")

    for key in _POSITION_KEYS:
        base_value = getattr(text_config(base), key, None)
        donor_value = getattr(text_config(sibling), key, None)
        if base_value != donor_value:
            raise _no_sibling(donor, f"`{key}` is {donor_value} there and {base_value} here")


def _shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _no_sibling(donor: str, reason: str) -> LaminaError:
    return LaminaError(
        f"donors.{donor}: none of its layers can replace one of the model's, since {reason}. Name "
        "a fine-tune of the same base model."
    )


def _load_sibling_of(base: PreTrainedModel, record: Mapping[str, Any]) -> PreTrainedModel:
    """The sibling with this manifest, in the base model's dtype and on its device."""
    return _load_sibling(
        record["path"],
        record["weights_sha256"],
        record["trust_remote_code"],
        base.dtype,
        base.device,
    )


@lru_cache(maxsize=4)
def _load_sibling(
    path: str,
    weights_sha256: str,
    trust_remote_code: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> PreTrainedModel:
    manifest = {
        "path": path,
        "source": path,
        "weights_sha256": weights_sha256,
        "trust_remote_code": trust_remote_code,
        "dtype": str(dtype).removeprefix("torch."),
    }
    return load_model(manifest, device)

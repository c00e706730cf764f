"""Layers of siblings in the places of a model's own, as they are or merged: base + λ Σ (sibling - base).

A unit `7.@math` is layer 7 of the donor `math`. A plan describes its donors (`replacements`, by name): a sibling by
its manifest, a merged one by its `weight` and the siblings that it is made `of`. A layer that is not merged shares its
tensors with the sibling, which is loaded once for all variants of a job.
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
from lamina.models.units import parse, replacement

Records = Mapping[str, Mapping[str, Any]]

# Settings that decide the positions of tokens, under the names that families give them.
_POSITIONS = (
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "sliding_window",
    "layer_types",
)


def layers(base: PreTrainedModel, units: Iterable[str], records: Records) -> dict[str, nn.Module]:
    """The modules that units such as `7.@math` put in the places of the base model's layers.

    Raises LaminaError if a donor is no sibling of the base model.
    """
    return {
        unit: _layer(base, parse(unit)[0], name, records)
        for unit in units
        if (name := replacement(unit))
    }


def put(variant: PreTrainedModel, base: PreTrainedModel, plan: Mapping[str, Any]) -> None:
    """Put the layers that a plan takes from donors into a variant that still has all of its layers."""
    own = layers_of(variant)
    for unit, module in layers(base, plan["units"], plan.get("replacements", {})).items():
        memo: dict[int, Any] = {
            id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())
        }
        # The base's layer knows the variant's configuration; only the tensors are the donor's.
        mine = copy.deepcopy(module, memo)
        if hasattr(mine, "config"):
            setattr(mine, "config", text_config(variant))  # noqa: B010
        own[parse(unit)[0]] = mine


def check(base: PreTrainedModel, manifest: Mapping[str, Any], records: Records) -> None:
    """Refuse donors that are no siblings of the model with this manifest.

    Raises LaminaError if shapes, positions or tokenizers differ; the message names what differs.
    """
    words = load_tokenizer(dict(manifest)).get_vocab()
    for name, record in records.items():
        if "of" in record:
            continue
        sibling = _sibling(base, record)
        _check_shapes(base, sibling, name)
        if load_tokenizer(dict(record)).get_vocab() != words:
            raise _refused(name, "its tokenizer has other tokens")


def _layer(base: PreTrainedModel, layer: int, name: str, records: Records) -> nn.Module:
    record = records[name]
    if "of" not in record:
        sibling = _sibling(base, record)
        _check_shapes(base, sibling, name)
        return devices.follow_device(layers_of(sibling)[layer], layers_of(base)[layer])
    own = layers_of(base)[layer]
    merged = copy.deepcopy(own)
    others = [
        dict(_layer(base, layer, sibling_name, records).named_parameters())
        for sibling_name in record["of"]
    ]
    with torch.no_grad():
        for key, weight in merged.named_parameters():
            wide = weight.float()
            change = sum(
                (other[key].float().to(wide.device) - wide for other in others),
                torch.zeros_like(wide),
            )
            weight.copy_(wide + record["weight"] * change)
    return merged


def _check_shapes(base: PreTrainedModel, sibling: PreTrainedModel, name: str) -> None:
    mine, theirs = text_config(base), text_config(sibling)
    shapes = [
        {key: tuple(value.shape) for key, value in model.state_dict().items()}
        for model in (base, sibling)
    ]
    if shapes[0] != shapes[1]:
        key = next(
            key
            for key in sorted({*shapes[0], *shapes[1]})
            if shapes[0].get(key) != shapes[1].get(key)
        )
        raise _refused(name, f"'{key}' is {shapes[1].get(key)} there and {shapes[0].get(key)} here")
    for key in _POSITIONS:
        if getattr(mine, key, None) != getattr(theirs, key, None):
            raise _refused(
                name,
                f"`{key}` is {getattr(theirs, key, None)} there and {getattr(mine, key, None)} here",
            )


def _refused(name: str, why: str) -> LaminaError:
    return LaminaError(
        f"donors.{name}: no layer of it can take the place of the model's, since {why}. Name a fine-tune of the same "
        "base model."
    )


def _sibling(base: PreTrainedModel, record: Mapping[str, Any]) -> PreTrainedModel:
    return _loaded(
        record["path"],
        record["weights_sha256"],
        record["trust_remote_code"],
        base.dtype,
        base.device,
    )


@lru_cache(maxsize=4)
def _loaded(
    path: str, sha256: str, trust: bool, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    facts = {"path": path, "source": path, "weights_sha256": sha256, "trust_remote_code": trust}
    return load_model(facts | {"dtype": str(dtype).removeprefix("torch.")}, device)

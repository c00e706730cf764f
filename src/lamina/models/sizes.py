"""Counts what a model and each of its layers take: memory with a cache, parameters, work.

It counts on the model that config.json describes, without weights. `lamina.models.structure` tells
attention from MLP, as it does for cuts. transformers tells which tokens a layer caches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel

# Keys of a configuration for the number of experts that a token is routed to.
_CHOSEN_EXPERTS_KEYS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "top_k_experts",
)
DEFAULT_CONTEXT = 4096
"""Default number of cached tokens when the memory and time of a token are counted."""

_KEY_HEADS_KEYS = ("num_key_value_heads", "num_kv_heads", "num_attention_heads")


class LayerAmounts(NamedTuple):
    """What the components of one layer take: parameters, bytes, or bytes that are read."""

    attention: float
    mlp: float
    norm: float


class RemovableAmounts(NamedTuple):
    """What a model takes, and how much of it removals save."""

    model: float
    by_unit_kind: dict[str, list[float]]
    """By kind of unit, the least that the removal of each layer's unit saves."""


@dataclass(frozen=True)
class Sizes:
    """A model by its shapes."""

    parameters: list[LayerAmounts]
    """Parameters of each layer."""
    active_parameters: list[LayerAmounts]
    """Parameters of each layer that one token uses. Of the experts, only the chosen ones count."""
    outside: int
    """Parameters that belong to no layer."""
    head: int
    """Parameters of the output embedding, which computes the logits."""
    cached_numbers: list[int]
    """Numbers that a token adds to the KV cache of each layer."""
    cached_tokens: list[float]
    """Largest number of tokens that each layer caches; 0 for a layer that caches none."""
    width: int
    """Bytes per number."""
    longest: float
    """The model's maximum context length in tokens."""

    def amounts(self, what: str, context: int, cost: Any = "parameters") -> RemovableAmounts:
        """What the whole model takes, and the least that each layer saves, by kind of unit.

        what: `memory`, the bytes of the weights and of a cache of `context` tokens; `parameters`;
            or `latency`, the bytes of weights and of such a cache that one token reads.
        cost: how the sub-layers share the cost of a layer, for the kind `both`. Its entry is the
            saving of a sub-layer divided by its share: the smaller of the two.
        """
        layers = self._layer_amounts(what, context)
        whole_layers: list[float] = [sum(layer) for layer in layers]

        outside = self.head if what == "latency" else self.outside
        bytes_per_number = 1 if what == "parameters" else self.width
        model = sum(whole_layers) + bytes_per_number * outside

        attention_share = self.share(cost)
        by_unit_kind = {
            "layer": whole_layers,
            "attention": [layer.attention for layer in layers],
            "mlp": [layer.mlp for layer in layers],
            "both": [_least_layer_worth(layer, attention_share) for layer in layers],
        }
        return RemovableAmounts(model, by_unit_kind)

    @property
    def layer_parameters(self) -> int:
        """Average parameters of a layer that one token uses; of experts, only the chosen ones."""
        return round(sum(sum(layer) for layer in self.active_parameters)) // len(self.parameters)

    def describe_layers(self) -> list[dict[str, int]]:
        """The parameters of each layer, by the columns of table `layer_sizes`."""
        described: list[dict[str, int]] = []
        for layer, active_layer in zip(self.parameters, self.active_parameters, strict=True):
            described.append(
                {
                    "attention_parameters": round(layer.attention),
                    "mlp_parameters": round(layer.mlp),
                    "other_parameters": round(layer.norm),
                    "active_mlp_parameters": round(active_layer.mlp),
                }
            )
        return described

    def share(self, cost: Any) -> float:
        """The share of attention in a layer, by a selector's `cost`.

        It is 0 where no layer has a sub-layer.
        """
        if isinstance(cost, float):
            return cost
        if not any(layer.attention + layer.mlp for layer in self.parameters):
            return 0.0
        layers = self._layer_amounts(cost, DEFAULT_CONTEXT)
        attention = sum([layer.attention for layer in layers])
        mlp = sum([layer.mlp for layer in layers])
        return attention / (attention + mlp)

    def _layer_amounts(self, what: str, context: int) -> list[LayerAmounts]:
        """What the components of each layer take; the cache belongs to attention."""
        if what == "parameters":
            return self.parameters
        layers = self.active_parameters if what == "latency" else self.parameters
        n_tokens = min(context, self.longest)
        amounts: list[LayerAmounts] = []
        caches = zip(self.cached_numbers, self.cached_tokens, strict=True)
        for layer, (n_numbers, most_tokens) in zip(layers, caches, strict=True):
            cache = self.width * n_numbers * min(n_tokens, most_tokens)
            attention = self.width * layer.attention + cache
            amounts.append(LayerAmounts(attention, self.width * layer.mlp, self.width * layer.norm))
        return amounts


def _least_layer_worth(layer: LayerAmounts, attention_share: float) -> float:
    """The saving of each sub-layer divided by its share of a layer; the smaller of the two."""
    worths: list[float] = []
    if attention_share:
        worths.append(layer.attention / attention_share)
    if 1 - attention_share:
        worths.append(layer.mlp / (1 - attention_share))
    return min(worths)


def count_sizes(model: "PreTrainedModel", width: int) -> Sizes:
    """The sizes of a complete model, whose weights may be meta tensors.

    width: bytes of a weight as it is loaded.
    """
    from lamina.models.structure import layers_of, text_config

    config = text_config(model)
    head = model.get_output_embeddings()
    stored: dict[Tensor, float] = {}
    for weight in model.parameters():
        stored[weight] = float(weight.numel())
    active = _count_active(model)
    parameters = [_count_layer(layer, stored) for layer in layers_of(model)]
    in_layers = sum(sum(layer) for layer in parameters)
    return Sizes(
        parameters,
        active_parameters=[_count_layer(layer, active) for layer in layers_of(model)],
        outside=sum(weight.numel() for weight in model.parameters()) - round(in_layers),
        head=head.weight.numel() if head is not None else 0,
        cached_numbers=count_cached_numbers(config),
        cached_tokens=limit_cached_tokens(config, len(parameters)),
        width=width,
        # Every type has this name in memory; some call it n_positions in their config.json.
        longest=getattr(config, "max_position_embeddings", None) or inf,
    )


def _count_layer(layer: "nn.Module", counts: "Mapping[Tensor, float]") -> LayerAmounts:
    """The parameters of a layer by component; what is in no sub-layer counts as norm."""
    from lamina.models.structure import sublayers_of

    by_component: dict[str, float] = {}
    for component, sublayers in sublayers_of(layer).items():
        weights: list[Tensor] = []
        for sublayer in sublayers:
            weights += sublayer.module.parameters()
        by_component[component] = sum(counts[weight] for weight in weights)
    whole = sum(counts[weight] for weight in layer.parameters())
    norm = whole - sum(by_component.values())
    return LayerAmounts(by_component["attention"], by_component["mlp"], norm)


def _count_active(model: "PreTrainedModel") -> "Mapping[Tensor, float]":
    """How many parameters of each weight one token uses.

    Of stacked experts, only the chosen ones count.
    """
    from lamina.models.structure import text_config

    n_chosen = _first_setting(text_config(model), _CHOSEN_EXPERTS_KEYS, default=0)
    active: dict[Tensor, float] = {}
    for name, weight in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        n_experts = getattr(module, "num_experts", 0)
        is_stacked = n_chosen and weight.dim() == 3 and len(weight) == n_experts
        active[weight] = weight.numel() * (n_chosen / n_experts if is_stacked else 1)
    return active


def count_cached_numbers(config: "PretrainedConfig") -> list[int]:
    """Numbers of the keys and values of one token in each layer, if the layer caches them."""
    return [_count_layer_cache(layer_config) for layer_config in config.per_layer_config]


def _count_layer_cache(config: "PretrainedConfig") -> int:
    """Numbers of the keys and values of one token in a layer with this configuration."""
    if getattr(config, "kv_lora_rank", None):
        # Latent attention caches the latent from which keys and values are computed.
        return int(config.kv_lora_rank + config.qk_rope_head_dim)

    n_heads = getattr(config, "num_attention_heads", None) or 1
    head_size = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    is_multi_query = getattr(config, "multi_query", False)
    if is_multi_query and not getattr(config, "new_decoder_architecture", False):
        n_key_heads = 1
    else:
        n_key_heads = _first_setting(config, _KEY_HEADS_KEYS, default=1)
    return int(2 * n_key_heads * head_size)


def limit_cached_tokens(config: "PretrainedConfig", n_layers: int) -> list[float]:
    """The most tokens whose keys and values each layer caches; 0 if it caches none."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    limits: list[float] = []
    for layer in DynamicCache(config=config).layers:
        is_cached = isinstance(layer, DynamicLayer)
        limits.append(float(getattr(layer, "sliding_window", inf)) if is_cached else 0.0)
    return limits + [0.0] * (n_layers - len(limits))


def _first_setting(config: "PretrainedConfig", keys: tuple[str, ...], default: int) -> int:
    """The first of several settings that a configuration has and that is not 0."""
    for key in keys:
        value: int | None = getattr(config, key, None)
        if value:
            return value
    return default

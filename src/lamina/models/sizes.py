"""What a model and each of its layers take: memory with a cache, parameters, work.

Counted on the model that its config.json describes, without weights. What is attention and what is MLP says
`lamina.models.structure`, by which layers are cut as well; which tokens a layer caches says transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from lamina.config.studies import CONTEXT

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

# Experts that a token goes through.
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "num_attention_heads")


@dataclass(frozen=True)
class Sizes:
    """A model by its shapes."""

    parts: list[dict[str, float]]  # parameters of each layer by part: attention, mlp, norm
    active: list[dict[str, float]]  # those of them that one token uses, of experts only the chosen
    outside: int  # parameters that belong to no layer
    head: int  # parameters of the matrix that gives the logits
    cached_numbers: int  # that a token leaves in the cache of a layer
    cached_tokens: list[float]  # the most that each layer caches; 0 where none are
    width: int  # bytes of a number
    longest: float  # the most tokens that the model takes

    def amounts(
        self, what: str, context: int, cost: Any = "parameters"
    ) -> tuple[float, dict[str, list[float]]]:
        """What the whole model takes, and the least that each layer gives back, by kind of unit.

        what: `memory`, bytes of the weights and of a cache of `context` tokens; `parameters`; or `latency`, the bytes
            of weights and of such a cache that one token reads. For `both`, whose sub-layers count by `cost`: a layer's
            worth of the sub-layer that gives back less.
        """
        attention, mlp, norm = self._parts(what, context)
        outside, share = self.head if what == "latency" else self.outside, self.share(cost)
        layers = [sum(parts) for parts in zip(attention, mlp, norm, strict=True)]
        shares = [part for part in ((attention, share), (mlp, 1 - share)) if part[1]]
        worth = [
            min(amounts[number] / of for amounts, of in shares) for number in range(len(layers))
        ]
        whole = sum(layers) + (1 if what == "parameters" else self.width) * outside
        return whole, {"layer": layers, "attention": attention, "mlp": mlp, "both": worth}

    def share(self, cost: Any) -> float:
        """What attention counts of a layer by a selector's `cost`; 0 where no layer has a sub-layer."""
        if isinstance(cost, float):
            return cost
        if not any(layer["attention"] + layer["mlp"] for layer in self.parts):
            return 0.0
        attention, mlp, _ = map(sum, self._parts(cost, CONTEXT))
        return attention / (attention + mlp)

    def _parts(self, what: str, context: int) -> list[list[float]]:
        """What the attention, the MLP and the norms of each layer take."""
        layers = self.active if what == "latency" else self.parts
        width, tokens = (1, 0) if what == "parameters" else (self.width, min(context, self.longest))
        attention, *others = (
            [width * layer[part] for layer in layers] for part in ("attention", "mlp", "norm")
        )
        cache = [width * self.cached_numbers * min(tokens, most) for most in self.cached_tokens]
        return [[sum(both) for both in zip(attention, cache, strict=True)], *others]


def of_model(model: "PreTrainedModel", width: int) -> Sizes:
    """The sizes of a complete model, whose weights may be meta tensors; `width` is the bytes of a weight as loaded."""
    from lamina.models.structure import halves, layers_of, text_config

    used = used_parameters(model)
    parts: list[dict[str, float]] = []
    active: list[dict[str, float]] = []
    for layer in layers_of(model):
        whole = {weight: float(weight.numel()) for weight in layer.parameters()}
        modules = {
            part: [sub_layer.module for sub_layer in sub_layers]
            for part, sub_layers in halves(layer).items()
        }
        for counts, found in ((whole, parts), (used, active)):
            layer_counts = {
                part: sum(counts[weight] for module in of for weight in module.parameters())
                for part, of in modules.items()
            }
            every = sum(counts[weight] for weight in layer.parameters())
            layer_counts["norm"] = every - sum(layer_counts.values())
            found.append(layer_counts)
    config, head = text_config(model), model.get_output_embeddings()
    total = sum(weight.numel() for weight in model.parameters())
    return Sizes(
        parts,
        active,
        outside=total - round(sum(sum(layer.values()) for layer in parts)),
        head=head.weight.numel() if head is not None else 0,
        cached_numbers=_cached_numbers(config),
        cached_tokens=_cached_tokens(config, len(parts)),
        width=width,
        # Under this name for every type; some types call it n_positions in their config.json.
        longest=getattr(config, "max_position_embeddings", None) or inf,
    )


def used_parameters(model: "PreTrainedModel") -> "Mapping[Tensor, float]":
    """How many parameters of each weight one token meets: of stacked experts, as many as it chooses."""
    from lamina.models.structure import text_config

    used: dict[Tensor, float] = {}
    config = text_config(model)
    chosen: int = next((each for name in _CHOSEN if (each := getattr(config, name, 0))), 0)
    for name, weight in model.named_parameters():
        experts = getattr(model.get_submodule(name.rpartition(".")[0]), "num_experts", 0)
        stacked = chosen and weight.dim() == 3 and len(weight) == experts
        used[weight] = weight.numel() * (chosen / experts if stacked else 1)
    return used


def _cached_numbers(config: "PretrainedConfig") -> int:
    """Numbers of the keys and values of one token in one layer."""
    heads = getattr(config, "num_attention_heads", None) or 1
    if getattr(config, "kv_lora_rank", None):
        # Latent attention keeps what its keys and values are computed from.
        return int(config.kv_lora_rank + config.qk_rope_head_dim)
    shared = getattr(config, "multi_query", False)
    shared = shared and not getattr(config, "new_decoder_architecture", False)
    key_heads = next((n for name in _KEY_HEADS if (n := getattr(config, name, None))), 1)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * (1 if shared else key_heads) * head_size)


def _cached_tokens(config: "PretrainedConfig", n_layers: int) -> list[float]:
    """The most tokens whose keys and values each layer caches."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    tokens = [
        float(getattr(layer, "sliding_window", inf)) if isinstance(layer, DynamicLayer) else 0.0
        for layer in DynamicCache(config=config).layers
    ]
    return tokens + [0.0] * (n_layers - len(tokens))

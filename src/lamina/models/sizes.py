"""What a model and each of its layers take: memory with a cache, parameters, work. Read from shapes, without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import Any

from lamina.config.models import Model
from lamina.config.studies import CONTEXT
from lamina.models import checkpoint

_HEADS = ("num_attention_heads", "n_head")
_KEYS = ("num_key_value_heads", "num_kv_heads", *_HEADS)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class Sizes:
    """A model by its shapes."""

    parts: list[dict[str, float]]  # parameters of each layer by part: attention, mlp, norm
    active: list[dict[str, float]]  # those of them that one token uses, of experts only the chosen
    outside: int  # parameters beside the layers
    head: int  # parameters of the matrix that gives the logits
    cached: list[
        tuple[int, float]
    ]  # numbers that a token leaves in the cache of each layer; most tokens that it holds
    width: int  # bytes of a number
    longest: float  # the most tokens that the model takes

    def amounts(
        self, what: str, context: int, cost: Any = "parameters"
    ) -> tuple[float, dict[str, list[float]]]:
        """What the whole model takes, and the least that each layer gives back, by kind of unit.

        what: `memory`, bytes of the weights and of a cache of `context` tokens; `parameters`; or `latency`, the bytes
            of weights and of such a cache that one token reads. For `both`, whose halves count by `cost`: a layer's
            worth of the half that gives back less.
        """
        attention, mlp, norm = self._parts(what, context)
        beside, share = self.head if what == "latency" else self.outside, self.share(cost)
        layers = [sum(parts) for parts in zip(attention, mlp, norm, strict=True)]
        shares = [part for part in ((attention, share), (mlp, 1 - share)) if part[1]]
        worth = [
            min(amounts[number] / of for amounts, of in shares) for number in range(len(layers))
        ]
        whole = sum(layers) + (1 if what == "parameters" else self.width) * beside
        return whole, {"layer": layers, "attention": attention, "mlp": mlp, "both": worth}

    def share(self, cost: Any) -> float:
        """What attention counts of a layer by a selector's `cost`."""
        attention, mlp, _ = map(
            sum, self._parts("parameters" if isinstance(cost, float) else cost, CONTEXT)
        )
        return cost if isinstance(cost, float) else attention / (attention + mlp or 1)

    def _parts(self, what: str, context: int) -> list[list[float]]:
        """What the attention, the MLP and the norms of each layer take."""
        layers = self.active if what == "latency" else self.parts
        width, tokens = (1, 0) if what == "parameters" else (self.width, min(context, self.longest))
        attention, *others = (
            [width * layer[part] for layer in layers] for part in ("attention", "mlp", "norm")
        )
        cache = [width * numbers * min(tokens, most) for numbers, most in self.cached]
        return [[sum(both) for both in zip(attention, cache, strict=True)], *others]


def read(entry: Model, folder: Path, where: str) -> Sizes | None:
    """The sizes of a model in a folder from its tensors' shapes and its config.json; None if they are not there."""
    if not folder.is_dir() or checkpoint.is_quantised(folder):
        return None
    tensors, settings = (
        checkpoint.read_weights(folder, where),
        checkpoint.read_settings(folder, where, entry.source),
    )
    return shaped(entry, tensors, checkpoint.decoder_settings(settings), entry.layers or 0)


def shaped(entry: Model, tensors: Mapping[str, Any], text: Mapping[str, Any], depth: int) -> Sizes:
    """The sizes of a model of `depth` layers from the headers of its tensors and the `text` part of its config.json.

    Layers are taken to cache all tokens unless config.json gives their `layer_types`.
    """
    parts, active = (
        [dict.fromkeys(("attention", "mlp", "norm"), 0.0) for _ in range(depth)] for _ in range(2)
    )
    outside, share = 0, (text.get("num_experts_per_tok") or 1) / (_first(text, *_EXPERTS) or 1)
    for name, tensor in tensors.items():
        found, count = checkpoint.DECODER_LAYER.match(name), prod(tensor["shape"])
        if not found:
            outside += (
                0 if text.get("tie_word_embeddings") and name.endswith("lm_head.weight") else count
            )
        elif int(found[1]) < depth and len(tensor["shape"]) < 4:  # masks are stored with four
            of = name[found.end() :].partition(".")[0]
            part = (
                "norm"
                if "norm" in of or of.startswith("ln")
                else "attention"
                if "att" in of
                else "mlp"
            )
            parts[int(found[1])][part] += count
            active[int(found[1])][part] += count * (share if ".experts." in name else 1)
    channels = _first(text, "hidden_size", "n_embd", "d_model") or 0
    alone = text.get("multi_query") and not text.get("new_decoder_architecture")
    heads = (_first(text, *_HEADS) or 1, 1 if alone else _first(text, *_KEYS) or 1)
    keys = 2 * heads[1] * (text.get("head_dim") or channels // heads[0])
    if text.get(
        "kv_lora_rank"
    ):  # latent attention, whose keys and values transformers keeps at full width
        keys = heads[0] * (text["qk_nope_head_dim"] + text["qk_rope_head_dim"] + text["v_head_dim"])
    window = _first(text, "sliding_window", "attention_chunk_size") or inf
    most = {"full_attention": inf, "sliding_attention": window, "chunked_attention": window}
    cached = [
        (keys, most.get(kind, 0)) for kind in text.get("layer_types") or ["full_attention"] * depth
    ]
    width, head = (
        checkpoint.stored_width(entry.dtype, text, tensors),
        (text.get("vocab_size") or 0) * channels,
    )
    longest = text.get("max_position_embeddings") or inf
    return Sizes(parts, active, outside, head, cached, width, longest)


def _first(text: Mapping[str, Any], *keys: str) -> Any:
    return next((text[key] for key in keys if text.get(key) is not None), None)

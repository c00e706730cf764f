"""What a decoder looks like, family by family: where its layers, norms, embeddings and sub-layers are.

Only data, without torch: what is done with it stands in `structure`. An entry changes the jobs of its own models alone.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Family:
    """Dotted paths from the model, and names inside one layer.

    Attributes
    ----------
    layers, final_norm, embeddings, head : paths of the layer list, the norm after it (None if the family has none),
        the token embeddings and the output projection.
    attention, mlp : sub-module names inside a layer. `mlp` may be several names where the layer holds the projections
        itself. None where the sub-layers of the family are not known.
    projections : names of the MLP's linear maps inside `mlp`, what LoRA adapts; the last leads to the stream.
    attention_output : name of the linear map inside `attention` that leads to the stream.
    transposed : the projections store their weight as (in, out), as GPT-2's Conv1D does.
    residual_inside : the sub-layer adds the residual itself, given as its second argument.
    stream_norm : a norm stands on the residual stream itself, after the sum, so that a layer without its sub-layers is
        not the identity.
    """

    name: str
    layers: str
    final_norm: str | None
    embeddings: str
    head: str
    attention: str | None
    mlp: tuple[str, ...]
    projections: tuple[str, ...]
    attention_output: str = ""
    transposed: bool = False
    residual_inside: bool = False
    stream_norm: bool = False


_LLAMA = Family(
    name="llama",
    layers="model.layers",
    final_norm="model.norm",
    embeddings="model.embed_tokens",
    head="lm_head",
    attention="self_attn",
    mlp=("mlp",),
    projections=("gate_proj", "up_proj", "down_proj"),
    attention_output="o_proj",
)
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2", "bitnet")

_BLOOM = Family(
    name="bloom",
    layers="transformer.h",
    final_norm="transformer.ln_f",
    embeddings="transformer.word_embeddings",
    head="lm_head",
    attention="self_attention",
    mlp=("mlp",),
    projections=("dense_h_to_4h", "dense_4h_to_h"),
    attention_output="dense",
    residual_inside=True,
)

FAMILIES: dict[str, Family] = {
    **{name: replace(_LLAMA, name=name) for name in _LLAMA_LIKE},
    "phi3": replace(_LLAMA, name="phi3", projections=("gate_up_proj", "down_proj")),
    # The experts are stacked parameters, not linear modules, which LoRA cannot wrap by name.
    "mixtral": replace(_LLAMA, name="mixtral", projections=()),
    "gpt_neox": Family(
        name="gpt_neox",
        layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        embeddings="gpt_neox.embed_in",
        head="embed_out",
        attention="attention",
        mlp=("mlp",),
        projections=("dense_h_to_4h", "dense_4h_to_h"),
        attention_output="dense",
    ),
    "gpt2": Family(
        name="gpt2",
        layers="transformer.h",
        final_norm="transformer.ln_f",
        embeddings="transformer.wte",
        head="lm_head",
        attention="attn",
        mlp=("mlp",),
        projections=("c_fc", "c_proj"),
        attention_output="c_proj",
        transposed=True,
    ),
    "opt": Family(
        name="opt",
        layers="model.decoder.layers",
        final_norm="model.decoder.final_layer_norm",
        embeddings="model.decoder.embed_tokens",
        head="lm_head",
        attention="self_attn",
        mlp=("fc1", "fc2"),
        projections=("fc1", "fc2"),
        attention_output="out_proj",
    ),
    "bloom": _BLOOM,
    "falcon": replace(_BLOOM, name="falcon", residual_inside=False),
}

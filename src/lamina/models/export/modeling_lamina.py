"""A pruned decoder with what a stock class has no place for: patches of the residual stream, removed halves of layers.

The decoder may be part of a model that sees or hears, whose other parts stay as they were.

An export copies this file beside its weights, with the classes it builds on and the model type put in. It needs torch
and transformers only:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Stock transformers does not know the model type, and the stock classes refuse the configuration, because loaded without
this code the model would silently lose its patches.
"""

from typing import Any

import torch
from torch import nn
from transformers import MODEL_MAPPING
from transformers import LlamaConfig as BaseConfig
from transformers import LlamaForCausalLM as BaseModel
from transformers.cache_utils import CacheLayerMixin

MODEL_TYPE = "lamina_llama"

PLACES = ("removed", "patches")  # what a configuration says, by module path
PARTS = (
    "operator",
    "down",
    "up",
    "bias",
)  # names of a patch's tensors: M (C, C), or M = down up, (C, r) and (r, C)

# Stands in config.json where stock classes demand a number.
REFUSAL = (
    "this checkpoint has patches or removed halves that the stock class would drop: load it with "
    "AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True), or with lamina.load(folder)"
)


def repair(stream: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """h + h M + b for a stream h (..., C) and the `PARTS` that a patch has, in the dtype of h.

    In the stream's own dtype, as h + h M and not h (I + M), whose rounding in bfloat16 would swamp a small M. Float16
    is left for float32 on the way and its range is kept at the end: its sums overflow where M undoes a large h.
    """
    if stream.dtype == torch.float16:
        with torch.autocast(stream.device.type, enabled=False):
            wide = repair(stream.float(), {name: part.float() for name, part in parts.items()})
        limit = torch.finfo(stream.dtype).max
        return wide.clamp(-limit, limit).to(stream.dtype)
    change = stream
    for name in PARTS[:-1]:
        change = change @ parts[name].to(stream.dtype) if name in parts else change
    return stream + change + parts["bias"].to(stream.dtype) if "bias" in parts else stream + change


class Patched:
    """Mixed in before the class of a layer or norm: repairs the stream that it is given, then does what it did."""

    @property
    def patch_parts(self) -> dict[str, torch.Tensor]:
        """The tensors of the patch by name."""
        return {
            name: getattr(self, f"patch_{name}") for name in PARTS if hasattr(self, f"patch_{name}")
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original module on the repaired stream."""
        stream = args[0] if args else kwargs.pop("hidden_states")
        inner: Any = super()
        return inner.forward(repair(stream, self.patch_parts), *args[1:], **kwargs)


def patch_before(module: nn.Module, parts: dict[str, torch.Tensor]) -> None:
    """Make `module` (a layer or the final norm) apply a patch, by its `PARTS`, to the stream it is given.

    The module gets a sub-class of its own class: its name, attributes and place in the model stay as they were, which
    transformers, accelerate and PEFT rely on. The tensors are buffers, so they move with the model and are saved.
    """
    kind = type(module)
    module.__class__ = type(kind.__name__, (Patched, kind), {"__module__": kind.__module__})
    for name, part in parts.items():
        module.register_buffer(f"patch_{name}", part)


def patch_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a patch is kept in when the weights have `dtype`: float16 has too little range for its entries."""
    return torch.float32 if dtype == torch.float16 else dtype


class NoAttention(nn.Module):
    """Stands where attention was removed and adds zero to the residual stream.

    Transformers reads the length of the past from the cache's first layer, so this module keeps one number per token
    there: positions and masks of the later layers stay right when layer 0 lost its attention.
    """

    def __init__(self, layer_idx: int, residual_inside: bool, returns: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.residual_inside = residual_inside
        self.returns = returns

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What `nothing` gives, in the form that attention had."""
        stream = args[0] if args else kwargs["hidden_states"]
        cache = next(
            (
                kwargs[name]
                for name in ("past_key_values", "layer_past")
                if kwargs.get(name) is not None
            ),
            None,
        )
        # Of an encoder and a decoder, the decoder's.
        cache = getattr(cache, "self_attention_cache", cache)
        held = [] if cache is None else cache.layers[self.layer_idx : self.layer_idx + 1]
        # Other kinds of mixers keep a state that has no length.
        if cache is not None and all(isinstance(layer, CacheLayerMixin) for layer in held):
            mark = stream.new_zeros(stream.shape[0], 1, stream.shape[1], 1)
            cache.update(mark, mark, self.layer_idx)
        return nothing(args, kwargs, self.residual_inside, self.returns)


class NoMLP(nn.Module):
    """Stands where an MLP was removed and adds zero to the residual stream."""

    def __init__(self, residual_inside: bool, returns: int) -> None:
        super().__init__()
        self.residual_inside = residual_inside
        self.returns = returns

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What `nothing` gives, in the form that the MLP had."""
        return nothing(args, kwargs, self.residual_inside, self.returns)


def nothing(
    args: tuple[Any, ...], kwargs: dict[str, Any], residual_inside: bool, returns: int
) -> Any:
    """Zero in the shape of the stream that a sub-layer is called with, or the residual where it adds that itself.

    Alone if `returns` is 0, else the first of so many values.
    """
    stream = args[0] if args else next(iter(kwargs.values()))
    given = (
        kwargs["residual"]
        if "residual" in kwargs
        else args[1]
        if residual_inside
        else torch.zeros_like(stream)
    )
    return (given, *[None] * (returns - 1)) if returns else given


def describe(model: nn.Module) -> dict[str, Any]:
    """What is special about a pruned model, as its configuration says it: by module path, `removed` and `patches`."""
    removed: dict[str, Any] = {}
    for path, module in model.named_modules():
        if isinstance(module, NoAttention):
            removed[path] = {
                "layer": module.layer_idx,
                "form": [module.residual_inside, module.returns],
            }
        elif isinstance(module, NoMLP):
            removed[path] = {"form": [module.residual_inside, module.returns]}
    patches = {
        path: {name: list(part.shape) for name, part in module.patch_parts.items()}
        for path, module in model.named_modules()
        if isinstance(module, Patched)
    }
    return {"removed": removed, "patches": patches}


def restore(model: nn.Module, described: dict[str, Any]) -> None:
    """Give a model of the right depth its special places back, the patches without their values (zeros)."""
    for path, what in described["removed"].items():
        parent, _, name = path.rpartition(".")
        is_attention = "layer" in what
        replacement = (
            NoAttention(what["layer"], *what["form"]) if is_attention else NoMLP(*what["form"])
        )
        setattr(model.get_submodule(parent), name, replacement)
    dtype = patch_dtype(torch.get_default_dtype())
    for path, what in described["patches"].items():
        patch_before(
            model.get_submodule(path),
            {name: torch.zeros(shape, dtype=dtype) for name, shape in what.items()},
        )


def refused_field(kind: Any) -> tuple[str, str]:
    """The number of attention heads under a family's name: every stock class needs it, a tokenizer does not.

    Of a family without attention, the number of its layers. Before it stands the name of the configuration inside of
    this one that the decoder has, empty where it has this one.
    """
    whole = kind()
    text = whole.get_text_config(decoder=True)
    holder = next((name for name in kind.sub_configs if getattr(whole, name, None) is text), "")
    names = [
        text.attribute_map.get(name, name) for name in ("num_attention_heads", "num_hidden_layers")
    ]
    return holder, str(names[0] if hasattr(text, names[0]) else names[1])


def refusing(settings: dict[str, Any], kind: Any, value: Any) -> dict[str, Any]:
    """A copy of a configuration's settings with the value in the place that stock classes need."""
    holder, name = refused_field(kind)
    return settings | ({holder: settings[holder] | {name: value}} if holder else {name: value})


class LaminaConfig(BaseConfig):
    """The base model's configuration; `lamina` says which modules are patched or removed."""

    model_type = MODEL_TYPE

    def __init__(self, lamina: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.lamina = lamina
        super().__init__(
            **(kwargs if lamina is None else refusing(kwargs, BaseConfig, lamina["heads"]))
        )

    def to_dict(self) -> dict[str, Any]:
        """As it stands in config.json: no stock class accepts it."""
        written: dict[str, Any] = super().to_dict()
        return written if self.lamina is None else refusing(written, BaseConfig, REFUSAL)


class Special:
    """Mixed in before a stock class: its removed halves are left out and its patches are in place."""

    config_class = LaminaConfig
    _keep_in_fp32_modules = [
        *(BaseModel._keep_in_fp32_modules or ()),
        *(f"patch_{name}" for name in PARTS),
    ]

    def __init__(self, config: LaminaConfig) -> None:
        stock: Any = super()
        stock.__init__(config)
        if config.lamina is not None:
            model: Any = self
            above = "" if isinstance(self, BaseModel) else f"{BaseModel.base_model_prefix}."
            inside = {
                key: {k.removeprefix(above): v for k, v in config.lamina[key].items()}
                for key in PLACES
            }
            restore(model, inside)

    # Transformers answers these from the text of a class's file, and this one holds no attention of its own.
    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return bool(BaseModel._can_set_attn_implementation())

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return bool(BaseModel._can_set_experts_implementation())


class LaminaForCausalLM(Special, BaseModel):  # type: ignore[misc]
    """The base model's class."""


Decoder: Any = MODEL_MAPPING.get(BaseConfig, BaseModel)


class LaminaModel(Special, Decoder):
    """The same without a head: what AutoModel and the Transformers backend of vLLM build."""

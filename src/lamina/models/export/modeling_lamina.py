"""An edited decoder with what a stock class has no place for: patches of the residual stream, damped
layers, and layers without their attention or their MLP.

The decoder may be part of a model that sees or hears, whose other parts stay as they were.

An export copies this file beside its weights, with the classes it builds on and the model type put
in. It needs torch and transformers only:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Stock transformers does not know the model type, and the stock classes refuse the configuration,
because loaded without this code the model would silently lose its patches.
"""

from typing import Any, TypedDict

import torch
from torch import nn
from transformers import MODEL_MAPPING
from transformers import LlamaConfig as BaseConfig
from transformers import LlamaForCausalLM as BaseModel
from transformers.cache_utils import CacheLayerMixin

MODEL_TYPE = "lamina_llama"

# The tensors of a patch h <- h + h M + bias, where M is `operator` (C, C), or the product of `down`
# (C, r) and `up` (r, C).
FACTORS = ("operator", "down", "up")
PARTS = (*FACTORS, "bias")

# Stands in config.json where stock classes demand a number.
REFUSAL = (
    "this checkpoint has patches, damped layers or removed sub-layers that the stock class would "
    "drop: load it with AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True), or with "
    "lamina.load(folder)"
)


class RemovedSublayer(TypedDict, total=False):
    """What config.json says of an attention or MLP that was removed."""

    form: list[Any]  # `residual_inside` and `n_returned` of the module in its place
    layer: int  # the number of its layer; of an attention only


class SpecialModules(TypedDict):
    """What config.json says of a pruned model under `lamina`, by the paths of modules."""

    removed: dict[str, RemovedSublayer]
    patches: dict[str, dict[str, list[int]]]  # the shapes of the tensors of each patch, by name
    damped: dict[str, list[Any]]  # by the path of a block's first layer: that of its last, and r


# ------------------------------------------------------------------------------------------ patches


def repair(stream: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """The stream h (..., C) after a patch: h + h M + bias, in the dtype of h.

    It is computed in that dtype, and as h + h M: in bfloat16 the rounding of I + M would swamp a
    small M. Float16 alone is computed in float32 and clamped to its range at the end, because its
    sums overflow where M undoes a large h.
    """
    if stream.dtype == torch.float16:
        with torch.autocast(stream.device.type, enabled=False):
            wide_parts = {name: part.float() for name, part in parts.items()}
            repaired = repair(stream.float(), wide_parts)
        limit = torch.finfo(torch.float16).max
        return repaired.clamp(-limit, limit).to(torch.float16)

    change = stream
    for name in FACTORS:
        if name in parts:
            change = change @ parts[name].to(stream.dtype)
    repaired = stream + change
    if "bias" in parts:
        repaired = repaired + parts["bias"].to(stream.dtype)
    return repaired


class Patched:
    """Mixed in before the class of a layer or norm: it runs on the repaired stream."""

    @property
    def patch_parts(self) -> dict[str, torch.Tensor]:
        """Those of the tensors `PARTS` that the patch has, by name."""
        parts: dict[str, torch.Tensor] = {}
        for name in PARTS:
            if hasattr(self, f"patch_{name}"):
                parts[name] = getattr(self, f"patch_{name}")
        return parts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original module with the repaired stream."""
        original: Any = super()
        if args:
            stream, *other_args = args
        else:
            stream = kwargs.pop("hidden_states")
            other_args = []
        return original.forward(repair(stream, self.patch_parts), *other_args, **kwargs)


def patch_before(module: nn.Module, parts: dict[str, torch.Tensor]) -> None:
    """Make `module`, a layer or the final norm, apply a patch to the stream that it is given.

    The module gets a sub-class of its own class, so that its name, attributes and position in the
    model stay as they were, which transformers, accelerate and PEFT rely on. The tensors are
    buffers: they move with the model and are saved.
    """
    mix_in(module, Patched)
    for name, part in parts.items():
        module.register_buffer(f"patch_{name}", part)


def mix_in(module: nn.Module, mixin: type) -> None:
    """Give a module a sub-class of its own class and of a mixin."""
    original_class = type(module)
    module.__class__ = type(
        original_class.__name__,
        (mixin, original_class),
        {"__module__": original_class.__module__},
    )


def patch_dtype(weights_dtype: torch.dtype) -> torch.dtype:
    """The dtype of a patch beside weights: float16 has too little range for its entries."""
    return torch.float32 if weights_dtype == torch.float16 else weights_dtype


# ----------------------------------------------------------------------------------- damped layers


def damp(stream: torch.Tensor, output: torch.Tensor, damping: int) -> torch.Tensor:
    """h + (B(h) - h) / r for a stream h, the output B(h) of a block of layers and r = `damping`."""
    return output if damping == 1 else stream + (output - stream) / damping


class DampedBlock:
    """What the first and the last layer of a damped block share."""

    def __init__(self, damping: int) -> None:
        self.damping = damping
        self.stream = torch.empty(0)  # that entered the first layer


class DampedStart:
    """Mixed in before the class of a block's first layer: it keeps the stream for the last one."""

    damped_from: DampedBlock

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original module."""
        self.damped_from.stream = args[0] if args else kwargs["hidden_states"]
        original: Any = super()
        return original.forward(*args, **kwargs)


class DampedEnd:
    """Mixed in before the class of a block's last layer: it returns the damped stream."""

    damped_to: DampedBlock

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original module, and damp its output."""
        original: Any = super()
        output = original.forward(*args, **kwargs)
        is_stream = isinstance(output, torch.Tensor)
        block = self.damped_to
        stream = block.stream.to((output if is_stream else output[0]).device)
        damped = damp(stream, output if is_stream else output[0], block.damping)
        return damped if is_stream else (damped, *output[1:])


def damp_block(layers: list[Any], damping: int) -> None:
    """Make a block of layers add the `damping`-th part of what it adds."""
    block = DampedBlock(damping)
    # The end comes first, so that the start of a block of one layer wraps it.
    mix_in(layers[-1], DampedEnd)
    layers[-1].damped_to = block
    mix_in(layers[0], DampedStart)
    layers[0].damped_from = block


# ------------------------------------------------------------------------------- removed sub-layers


class NoAttention(nn.Module):
    """Stands where attention was removed and adds zero to the residual stream.

    Transformers reads the length of the past from the cache's first layer. So this module keeps one
    number per token there, and positions and masks of the later layers stay right when layer 0 has
    lost its attention.

    layer_idx: the number of its layer, by which transformers finds its part of the cache.
    residual_inside: whether the removed module was given the residual and added it itself.
    n_returned: how many values it returned; 0 if it returned the stream alone, not in a tuple.
    """

    def __init__(self, layer_idx: int, residual_inside: bool, n_returned: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.residual_inside = residual_inside
        self.n_returned = n_returned

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Zero, in the form in which attention returned its output."""
        cache = kwargs.get("past_key_values")
        if cache is None:
            cache = kwargs.get("layer_past")
        # Of an encoder and a decoder, the decoder's.
        cache = getattr(cache, "self_attention_cache", cache)
        if cache is not None:
            self._count_tokens(cache, args[0] if args else kwargs["hidden_states"])
        return zero_output(args, kwargs, self.residual_inside, self.n_returned)

    def _count_tokens(self, cache: Any, stream: torch.Tensor) -> None:
        """Put one zero per token of the stream (B, T, C) into this layer's part of the cache."""
        own_layers = cache.layers[self.layer_idx : self.layer_idx + 1]
        # Mixers other than attention keep a state that has no length.
        if all(isinstance(layer, CacheLayerMixin) for layer in own_layers):
            zeros = stream.new_zeros(stream.shape[0], 1, stream.shape[1], 1)
            cache.update(zeros, zeros, self.layer_idx)


class NoMLP(nn.Module):
    """Stands where an MLP was removed and adds zero to the residual stream.

    The arguments are those of `NoAttention`.
    """

    def __init__(self, residual_inside: bool, n_returned: int) -> None:
        super().__init__()
        self.residual_inside = residual_inside
        self.n_returned = n_returned

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Zero, in the form in which the MLP returned its output."""
        return zero_output(args, kwargs, self.residual_inside, self.n_returned)


def zero_output(
    args: tuple[Any, ...], kwargs: dict[str, Any], residual_inside: bool, n_returned: int
) -> Any:
    """What a sub-layer returns that adds nothing to the stream it is called with.

    That is zero in the shape of the stream, or the residual where the sub-layer adds that itself.
    It is the first of `n_returned` values, or alone if that is 0.
    """
    if "residual" in kwargs:
        output = kwargs["residual"]
    elif residual_inside:
        output = args[1]
    else:
        stream = args[0] if args else next(iter(kwargs.values()))
        output = torch.zeros_like(stream)
    if n_returned == 0:
        return output
    return (output, *[None] * (n_returned - 1))


# ---------------------------------------------------------------------- what the configuration says


def describe(model: nn.Module) -> SpecialModules:
    """The special modules of an edited model, as its configuration says them."""
    removed: dict[str, RemovedSublayer] = {}
    patches: dict[str, dict[str, list[int]]] = {}
    damped: dict[str, list[Any]] = {}
    start_by_block: dict[DampedBlock, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, (NoAttention, NoMLP)):
            removed[path] = {"form": [module.residual_inside, module.n_returned]}
        if isinstance(module, NoAttention):
            removed[path]["layer"] = module.layer_idx
        if isinstance(module, Patched):
            patches[path] = {name: list(part.shape) for name, part in module.patch_parts.items()}
        if isinstance(module, DampedStart):
            start_by_block[module.damped_from] = path
        if isinstance(module, DampedEnd):
            block = module.damped_to
            damped[start_by_block[block]] = [path, block.damping]
    return {"removed": removed, "patches": patches, "damped": damped}


def restore(model: nn.Module, special_modules: SpecialModules) -> None:
    """Give a model of the right depth its special modules.

    Patches are zero until their weights are read.
    """
    for path, sublayer in special_modules["removed"].items():
        parent_path, _, name = path.rpartition(".")
        residual_inside, n_returned = sublayer["form"]
        replacement: nn.Module
        if "layer" in sublayer:
            replacement = NoAttention(sublayer["layer"], residual_inside, n_returned)
        else:
            replacement = NoMLP(residual_inside, n_returned)
        setattr(model.get_submodule(parent_path), name, replacement)

    dtype = patch_dtype(torch.get_default_dtype())
    for path, shapes in special_modules["patches"].items():
        zeros = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
        patch_before(model.get_submodule(path), zeros)
    for path, (last_path, damping) in special_modules["damped"].items():
        damp_block([model.get_submodule(path), model.get_submodule(last_path)], damping)


def find_refused_field(config_class: Any) -> tuple[str, str]:
    """The number in a family's configuration with which stock classes are made to refuse it.

    It is the number of attention heads, which every stock class needs and no tokenizer; in a family
    without attention, the number of layers.

    Returns the name of the decoder's sub-configuration, empty where the configuration has none, and
    the name of the number in it.
    """
    config = config_class()
    text_config = config.get_text_config(decoder=True)
    holder = ""
    for name in config_class.sub_configs:
        if getattr(config, name, None) is text_config:
            holder = name
            break
    family_names = text_config.attribute_map
    heads_field = family_names.get("num_attention_heads", "num_attention_heads")
    if hasattr(text_config, heads_field):
        return holder, str(heads_field)
    return holder, str(family_names.get("num_hidden_layers", "num_hidden_layers"))


def set_refused_field(settings: dict[str, Any], config_class: Any, value: Any) -> dict[str, Any]:
    """A copy of a configuration's settings with a value in the field that stock classes need."""
    holder, field = find_refused_field(config_class)
    if holder:
        return settings | {holder: settings[holder] | {field: value}}
    return settings | {field: value}


# ---------------------------------------------------------------------- the classes of transformers


class LaminaConfig(BaseConfig):
    """The base model's configuration.

    lamina: `SpecialModules`, and under `heads` the number that is refused in config.json.
    """

    model_type = MODEL_TYPE

    def __init__(self, lamina: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.lamina = lamina
        if lamina is not None:
            kwargs = set_refused_field(kwargs, BaseConfig, lamina["heads"])
        super().__init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in config.json: no stock class accepts it."""
        settings: dict[str, Any] = super().to_dict()
        if self.lamina is None:
            return settings
        return set_refused_field(settings, BaseConfig, REFUSAL)


class Special:
    """Mixed in before a stock class: removed sub-layers are left out, patches applied, blocks damped."""

    config_class = LaminaConfig
    _keep_in_fp32_modules = [
        *(BaseModel._keep_in_fp32_modules or ()),
        *(f"patch_{name}" for name in PARTS),
    ]

    def __init__(self, config: LaminaConfig) -> None:
        stock: Any = super()
        stock.__init__(config)
        if config.lamina is None:
            return
        # Paths are those in the model with a head. A decoder alone is one level further in.
        prefix = "" if isinstance(self, BaseModel) else f"{BaseModel.base_model_prefix}."
        special_modules: Any = {}
        for kind in ("removed", "patches", "damped"):
            special_modules[kind] = {
                path.removeprefix(prefix): value for path, value in config.lamina[kind].items()
            }
        special_modules["damped"] = {
            path: [last_path.removeprefix(prefix), damping]
            for path, (last_path, damping) in special_modules["damped"].items()
        }
        model: Any = self
        restore(model, special_modules)

    # Transformers answers these from the text of a class's file; this one holds no attention.
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

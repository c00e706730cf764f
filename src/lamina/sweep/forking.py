"""The forking batch: one forward pass that carries the model itself and, forked off it, the model without each unit.

Removing layer l changes nothing before l. So the pass starts with one stream, the current model's; at layer l a copy
of that stream is added that skips l. Streams lie one after another along the batch dimension, `lines` rows each. A
wrapper around every decoder layer does this for any family: it repeats what the layer is given, supplies the attention
mask itself and forwards everything else, so that no family's forward is written again here.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.families import Family
from lamina.models.structure import family_of, layers_of
from lamina.sweep.packing import Batch

# Names of the two streams that are not removals: the current model, and the unpruned one riding along.
CURRENT, BASE = "none", "base"


@dataclass
class Streams:
    """State of one pass, shared by all wrappers: the streams in the batch, and what is measured on the way."""

    batch: Batch
    candidates: frozenset[str]
    observed: frozenset[str]
    removed: frozenset[str]
    ride: bool
    windows: Sequence[int | None]
    own_mask: bool
    names: list[str] = field(default_factory=lambda: [CURRENT])
    observe: Callable[[str, torch.Tensor, torch.Tensor], None] | None = None
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    layer_tokens: int = 0
    last: int | None = None  # the layer behind which the current stream is not needed any more

    def rows(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """Rows of the `number`-th stream, (lines, T, …)."""
        lines = len(self.batch.lines)
        return tensor[number * lines : (number + 1) * lines]

    def mask(self, layer: int, dtype: torch.dtype) -> torch.Tensor:
        """Additive attention mask of a layer, (lines, 1, T, T): 0 where a token may look, else the least number."""
        window = self.windows[layer]
        if window not in self.masks:
            seen = self.batch.visible(window)[:, None]
            blank = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            self.masks[window] = blank.masked_fill_(~seen, torch.finfo(dtype).min)
        return self.masks[window]


class ForkingLayer(nn.Module):
    """Stands in for decoder layer `number`: forks a stream per candidate unit and skips the layer where it is gone."""

    def __init__(self, layer: nn.Module, number: int, family: Family) -> None:
        super().__init__()
        self.layer = layer
        self.number = number
        # The last module of a sub-layer is the one whose output is its contribution.
        self.parts: dict[str, nn.Module] = {}
        if family.attention and family.mlp:
            self.parts = {
                "attention": layer.get_submodule(family.attention),
                "mlp": layer.get_submodule(family.mlp[-1]),
            }
        self.residual_inside = family.residual_inside
        # Most layers return the stream alone, some the first of a tuple; learnt when the layer first runs.
        self.returns_tuple: bool | None = None
        self.streams: Streams | None = None
        self._mask_index = list(inspect.signature(layer.forward).parameters).index("attention_mask")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | tuple[torch.Tensor]:
        """(streams · lines, T, C) to the same with the forked streams added, in the form that the layer returns."""
        output = self._fork(hidden, args, kwargs)
        if self.returns_tuple is None:
            assert self.streams is not None
            self._run(self.streams.rows(hidden, 0), 1, {}, args, kwargs)
        return (output,) if self.returns_tuple else output

    def _fork(self, hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        streams = self.streams
        assert streams is not None
        unit = str(self.number)
        units = {component: f"{unit}.{component}" for component in self.parts}
        gone = unit in streams.removed
        touched = gone or any(u in streams.removed for u in units.values())
        if touched and streams.ride and BASE not in streams.names:
            hidden = torch.cat([hidden, streams.rows(hidden, 0)])
            streams.names.append(BASE)
        base = streams.names.index(BASE) if BASE in streams.names else None
        if gone:
            if base is None:
                return hidden
            through = self._run(streams.rows(hidden, base), 1, {}, args, kwargs)
            lines = len(streams.batch.lines)
            return torch.cat([hidden[: base * lines], through, hidden[(base + 1) * lines :]])

        start = streams.rows(hidden, 0)
        forks = [u for u in units.values() if u in streams.candidates]
        # What a sub-layer adds is read off the stream that lacks the other one; such a stream may end with the layer.
        watched = any(u in streams.observed for u in units.values())
        scratch = [u for u in units.values() if watched and u not in forks and u not in streams.removed]
        running = torch.cat([hidden, *[start] * len(forks + scratch)]) if forks or scratch else hidden
        names = streams.names + forks + scratch
        silenced = {
            component: [i for i, name in enumerate(names) if name == u or (u in streams.removed and name != BASE)]
            for component, u in units.items()
        }
        output = self._run(running, len(names), silenced, args, kwargs)
        if streams.observe is not None:
            self._observe(streams, names, start, output)
        if scratch:
            output = output[: len(streams.batch.lines) * (len(names) - len(scratch))]
        streams.names = streams.names + forks
        if unit in streams.candidates:
            output = torch.cat([output, start])
            streams.names.append(unit)
        if streams.last == self.number:
            output = output[len(streams.batch.lines) :]
            streams.names = streams.names[1:]
        return output

    def _observe(self, streams: Streams, names: list[str], before: torch.Tensor, output: torch.Tensor) -> None:
        """Report what each unit does to the current stream: its input and its output, (lines, T, C) each."""
        assert streams.observe is not None
        after = streams.rows(output, 0)
        if str(self.number) in streams.observed:
            streams.observe(str(self.number), before, after)
        attention, mlp = (f"{self.number}.{component}" for component in ("attention", "mlp"))
        if attention in names and mlp in names:
            without_mlp, without_attention = (streams.rows(output, names.index(u)) for u in (mlp, attention))
            # In a parallel block the MLP reads the layer's input; in a sequential one what attention left.
            parallel = family_is_parallel(self.layer)
            if attention in streams.observed:
                streams.observe(attention, before, without_mlp)
            if mlp in streams.observed:
                streams.observe(mlp, *((before, without_attention) if parallel else (without_mlp, after)))

    def _run(
        self,
        hidden: torch.Tensor,
        copies: int,
        silenced: dict[str, list[int]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        streams = self.streams
        assert streams is not None
        lines = len(streams.batch.lines)

        def repeat(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] % lines == 0:
                # One line broadcasts by itself: no copies of a long mask. ALiBi's biases do not, being reshaped.
                alone = copies == 1 or (value.shape[0] == 1 and streams.own_mask)
                return value if alone else value.repeat(copies, *[1] * (value.ndim - 1))
            if isinstance(value, tuple):
                return tuple(repeat(part) for part in value)
            return value

        if streams.own_mask:
            mask = streams.mask(self.number, hidden.dtype)
            if len(args) >= self._mask_index:
                args = (*args[: self._mask_index - 1], mask, *args[self._mask_index :])
            else:
                kwargs = {**kwargs, "attention_mask": mask}
        streams.layer_tokens += hidden.shape[0] * hidden.shape[1]
        handles = [
            self.parts[component].register_forward_hook(_silencer(numbers, copies, self.residual_inside))
            for component, numbers in silenced.items()
            if numbers
        ]
        try:
            output = self.layer(hidden, *map(repeat, args), **{name: repeat(value) for name, value in kwargs.items()})
        finally:
            for handle in handles:
                handle.remove()
        self.returns_tuple = isinstance(output, tuple)
        return output[0] if self.returns_tuple else output


def family_is_parallel(layer: nn.Module) -> bool:
    """Whether attention and MLP of this layer read the same input (GPT-NeoX and Falcon decide it per model)."""
    config = getattr(layer, "config", None)
    for name in ("use_parallel_residual", "parallel_attn"):
        for holder in (layer, config):
            if isinstance(getattr(holder, name, None), bool):
                return bool(getattr(holder, name))
    return False


def _silencer(numbers: list[int], copies: int, residual_inside: bool) -> Callable[..., Any]:
    """A hook that takes a sub-layer's contribution out of the `numbers`-th of `copies` streams.

    Where the sub-layer adds the residual itself (BLOOM gives it as second argument), the residual is what remains.
    """

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        value = (output[0] if isinstance(output, tuple) else output).clone()
        # OPT flattens lines and tokens before its MLP, so rows are counted in what is there.
        rows = value.shape[0] // copies
        for number in numbers:
            part = slice(number * rows, (number + 1) * rows)
            value[part] = inputs[1][part] if residual_inside else 0
        return (value, *output[1:]) if isinstance(output, tuple) else value

    return hook


class SelectingHead(nn.Module):
    """Stands in for the output embedding: only the positions asked for are multiplied by the vocabulary matrix.

    The model's own soft-capping and logit scale follow as ever.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.choose: Callable[[torch.Tensor], torch.Tensor] = lambda hidden: hidden

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("head"), name)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(streams · lines, T, C) to (1, streams · positions, V)."""
        return self.head(self.choose(hidden))


@contextmanager
def forking(model: PreTrainedModel) -> Iterator[tuple[Sequence[ForkingLayer], SelectingHead]]:
    """The model with every layer and its head wrapped; unwrapped again at the end, whatever happens."""
    layers = layers_of(model)
    family = family_of(model)
    originals = list(layers)
    head = model.get_output_embeddings()
    if head is None:
        raise LaminaError(f"{type(model).__name__} has no output embedding, so nothing can be scored with it.")
    wrapped = [ForkingLayer(layer, number, family) for number, layer in enumerate(originals)]
    selecting = SelectingHead(head)
    try:
        for number, wrapper in enumerate(wrapped):
            layers[number] = wrapper
        model.set_output_embeddings(selecting)
        yield wrapped, selecting
    finally:
        for number, layer in enumerate(originals):
            layers[number] = layer
        model.set_output_embeddings(head)


def windows(model: PreTrainedModel) -> list[int | None]:
    """How far back each layer's attention looks, in positions; None for all the way.

    Raises
    ------
    LaminaError
        If a layer's attention is of a kind whose mask the engine does not know.
    """
    config = model.config.get_text_config()
    number = len(layers_of(model))
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return [window] * number
    known = {"full_attention": None, "sliding_attention": window}
    odd = sorted(set(kinds) - set(known))
    if odd:
        raise LaminaError(f"the sweep does not know the attention of layer type {odd[0]!r} ({type(model).__name__}).")
    return [known[kind] for kind in kinds]


def uses_alibi(model: PreTrainedModel) -> bool:
    """Whether positions enter by ALiBi: its bias counts places in the row, which packing would change."""
    return model.config.model_type == "bloom" or bool(getattr(model.config, "alibi", False))

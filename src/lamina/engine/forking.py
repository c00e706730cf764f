"""The forking batch: one forward pass that carries all streams of a tree of candidates.

Streams lie one after another along the batch dimension, `lines` rows each. A wrapper around every decoder layer does at
its layer what the tree says, for any family: it repeats what the layer is given, supplies the attention mask itself and
forwards everything else, so that no family's forward is written again here.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.engine.candidates import Branch, Level, Tree
from lamina.engine.packing import Batch
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.devices import place_of
from lamina.models.families import FAMILIES
from lamina.models.structure import halves, layers_of, text_config


@dataclass
class Streams:
    """State of one forward pass, shared by all wrappers.

    `windows` says what each layer sees, for masks of our own; None leaves the model its own masks. The lines stand
    `copies` times in the model's input: once for each stream if its code needs one batch size, else once. `observe`
    takes the number of an observation and the two streams that it compares, (lines, T, C) each. `causal` says that
    attention without a mask is causal: it then picks its fastest kernel and does not repeat grouped heads.
    """

    batch: Batch
    tree: Tree
    windows: Sequence[int | None] | None
    causal: bool
    observe: Callable[[int, torch.Tensor, torch.Tensor], None]
    copies: int = 1
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    layer_tokens: int = 0

    def rows(self, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Rows of streams `start` … `end` - 1, (streams · lines, T, …)."""
        lines = len(self.batch.lines)
        return tensor[start * lines : end * lines]

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive attention mask of a layer, (lines, 1, T, T): 0 where a token may look, else the least number.

        None where the mask would only be causal.
        """
        length = self.batch.tokens.shape[1]
        if self.causal and self.batch.plain and (window is None or window >= length):
            return None
        if window not in self.masks:
            seen = self.batch.visible(window)[:, None]
            blank = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            self.masks[window] = blank.masked_fill_(~seen, torch.finfo(dtype).min)
        return self.masks[window]


class ForkingLayer(nn.Module):
    """Stands in for decoder layer `number`: splits, runs, skips, repairs and ends streams as the pass's tree says."""

    def __init__(self, layer: nn.Module, number: int) -> None:
        super().__init__()
        self.layer = layer
        self.number = number
        self.place = place_of(layer)
        self.halves = halves(layer)
        self.others: dict[
            str, nn.Module
        ] = {}  # layers that streams may run through instead, no part of the model
        self.state: Streams | None = None
        # Learnt from batches of different sizes outside a pass: how many values the layer returns (0: the stream
        # alone), and the first size of each tensor that it is given, by its place among the arguments.
        self.returns = 0
        self.sizes: dict[tuple[Any, ...], list[int]] = {}
        names = list(inspect.signature(layer.forward).parameters)
        self._stream_name = names[0]
        self._mask_index = names.index("attention_mask") if "attention_mask" in names else None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """(streams · lines, T, C) to the streams that the layer leaves, in the form that it returns."""
        state = self.state
        if state is None:
            output = self.layer(*args, **kwargs)
            self.returns = 0 if isinstance(output, torch.Tensor) else len(output)
            _mapped(
                lambda tensor, at: self.sizes.setdefault(at, []).append(tensor.shape[0]),
                (args, kwargs),
            )
            return output
        hidden = args[0] if args else kwargs.pop(self._stream_name)
        args = args[1:]
        # Streams that pass a layer by stay beside those that run.
        levels, lines = state.tree.levels, len(state.batch.lines)
        hidden = hidden[:lines] if self.number == 0 else hidden
        hidden = hidden.to(self.place)
        hidden = self._advance(state, levels[self.number], hidden, args, kwargs)
        if self.number == len(levels) - 2:
            # Behind the last layer there may be one more patch.
            hidden = self._advance(state, levels[-1], hidden, args, kwargs)
            missing = state.copies * lines - len(hidden)
            hidden = (
                torch.cat([hidden, hidden[:1].expand(missing, *hidden.shape[1:])])
                if missing > 0
                else hidden
            )
        return (hidden, *[None] * (self.returns - 1)) if self.returns else hidden

    def _advance(
        self, state: Streams, level: Level, hidden: torch.Tensor, args: Any, kwargs: Any
    ) -> torch.Tensor:
        wanted = [(branch.source, branch.operation.patch) for branch in level.branches]
        entering = output = self._gather(
            state, [(hidden, *place) for place in wanted[: level.running]], hidden
        )
        if level.running:
            outputs, start = [], 0
            for _, group in groupby(
                level.branches[: level.running], lambda branch: branch.operation.other
            ):
                together = list(group)
                streams = state.rows(entering, start, start + len(together))
                outputs.append(self._run(state, together, streams, args, kwargs))
                start += len(together)
            output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        # The result of each branch: rows of the layer's output, or a stream that passes the layer by.
        left: list[tuple[torch.Tensor, int, Patch | None]] = [
            (output, i, None) for i in range(level.running)
        ]
        left += [(hidden, *place) for place in wanted[level.running :]]
        for view in level.views:
            runs = view.entering and view.before < level.running
            before = [(entering, view.before, None)] if runs else [left[view.before]]
            pair = (self._gather(state, places, hidden) for places in (before, [left[view.after]]))
            state.observe(view.number, *pair)
        return self._gather(state, [left[number] for number in level.kept], hidden)

    def _gather(
        self,
        state: Streams,
        places: Sequence[tuple[torch.Tensor, int, Patch | None]],
        like: torch.Tensor,
    ) -> torch.Tensor:
        """Streams (tensor, number, repair) one after another; a view if they already stand in this order."""
        blocks: list[tuple[torch.Tensor, int, int, Patch | None]] = []
        for tensor, number, patch in places:
            if (
                blocks
                and blocks[-1][0] is tensor
                and blocks[-1][2] == number
                and blocks[-1][3] is patch is None
            ):
                blocks[-1] = (tensor, blocks[-1][1], number + 1, None)
            else:
                blocks.append((tensor, number, number + 1, patch))
        parts = [
            self._repaired(state.rows(tensor, start, end), patch)
            for tensor, start, end, patch in blocks
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else like[:0]

    def _repaired(self, stream: torch.Tensor, patch: Patch | None) -> torch.Tensor:
        if patch is None:
            return stream
        return patch.to(stream.device, next(self.layer.parameters()).dtype).repaired(stream)

    def _run(
        self,
        state: Streams,
        together: Sequence[Branch],
        hidden: torch.Tensor,
        args: Any,
        kwargs: Any,
    ) -> torch.Tensor:
        """What the layer gives for branches through one module, with the parts of it that each of them lacks silent."""
        lines, copies, other = len(state.batch.lines), len(together), together[0].operation.other

        def repeated(value: torch.Tensor, place: tuple[Any, ...]) -> torch.Tensor:
            """One copy per stream of a tensor that has a part for each line."""
            # A tensor of the same size for every batch has no part for a line, although its size may be a multiple.
            fixed = len(set(self.sizes.get(place, ()))) == 1
            if fixed or value.shape[0] % lines:
                return value
            if state.copies > 1:
                return value[: value.shape[0] // state.copies * copies]
            # One line broadcasts by itself, so a long mask is not copied. ALiBi's biases do not, as they are reshaped.
            alone = copies == 1 or (value.shape[0] == 1 and state.windows is not None)
            return value if alone else _copied(value, copies)

        (_, *others), named = _mapped(repeated, ((None, *args), kwargs))
        if state.windows is not None:
            mask = state.mask(state.windows[self.number], hidden.dtype)
            mask = mask if mask is None or lines == 1 else _copied(mask, copies)
            if self._mask_index is not None and len(others) >= self._mask_index:
                others[self._mask_index - 1] = mask
            else:
                named["attention_mask"] = mask
        state.layer_tokens += hidden.shape[0] * hidden.shape[1]
        handles = [
            half.module.register_forward_hook(
                silencer(numbers, copies, half.residual), with_kwargs=True
            )
            for part, parts in self.halves.items()
            if (
                numbers := [
                    i for i, branch in enumerate(together) if part in branch.operation.without
                ]
            )
            for half in parts
        ]
        try:
            module = self.others[other] if other else self.layer
            output = module(hidden, *others, **named)
        finally:
            for handle in handles:
                handle.remove()
        stream: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
        return stream


def _mapped(
    change: Callable[[torch.Tensor, tuple[Any, ...]], Any], value: Any, place: tuple[Any, ...] = ()
) -> Any:
    """A copy of nested tuples, lists and mappings with `change(tensor, place)` in the place of each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value, place) if value.ndim else value
    if type(value) in (tuple, list):
        return type(value)(
            _mapped(change, part, (*place, number)) for number, part in enumerate(value)
        )
    if type(value) is dict:
        return {name: _mapped(change, part, (*place, name)) for name, part in value.items()}
    return value


def _copied(value: torch.Tensor, copies: int) -> torch.Tensor:
    return value.repeat(copies, *[1] * (value.ndim - 1))


def parallel(layers: Iterable[nn.Module]) -> list[int]:
    """Numbers of the layers whose attention and MLP read the same input (GPT-NeoX and Falcon decide it per model)."""
    names, numbers = ("use_parallel_residual", "parallel_attn"), []
    for number, layer in enumerate(layers):
        said = [
            getattr(holder, name, None)
            for name in names
            for holder in (layer, getattr(layer, "config", None))
        ]
        if next((answer for answer in said if isinstance(answer, bool)), False):
            numbers.append(number)
    return numbers


def silencer(numbers: list[int], copies: int, residual_inside: bool) -> Callable[..., Any]:
    """A hook that takes a sub-layer's contribution out of the `numbers`-th of `copies` streams.

    Where the sub-layer adds the residual itself (BLOOM gives it as an argument), the residual is what remains.
    """

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        value = (output[0] if isinstance(output, tuple) else output).clone()
        # OPT flattens lines and tokens before its MLP, so rows are counted in the output.
        rows = value.shape[0] // copies
        for number in numbers:
            part = slice(number * rows, (number + 1) * rows)
            value[part] = (
                (named["residual"] if "residual" in named else inputs[1])[part]
                if residual_inside
                else 0
            )
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
    originals, head = list(layers_of(model)), model.get_output_embeddings()
    if head is None:
        raise LaminaError(
            f"{type(model).__name__} has no output embedding, so nothing can be scored with it."
        )
    wrapped = [ForkingLayer(layer, number) for number, layer in enumerate(originals)]
    selecting = SelectingHead(head)
    try:
        _put(model, wrapped, selecting)
        yield wrapped, selecting
    finally:
        _put(model, originals, head)


@contextmanager
def unwrapped(
    model: PreTrainedModel, wrapped: Sequence[ForkingLayer], head: SelectingHead
) -> Iterator[None]:
    """While open, the model is as it was before its layers and its head were wrapped."""
    try:
        _put(model, [wrapper.layer for wrapper in wrapped], head.head)
        yield
    finally:
        _put(model, wrapped, head)


def _put(model: PreTrainedModel, modules: Sequence[nn.Module], head: nn.Module) -> None:
    layers = layers_of(model)
    for number, module in enumerate(modules):
        layers[number] = module
    model.set_output_embeddings(head)


def windows(model: PreTrainedModel) -> list[int | None] | None:
    """How far back each layer's attention looks, in positions; None for all the way.

    None in the place of the list where a mask of our own cannot say what its layers see: other mixers than full and
    sliding attention (linear, state-space, convolutional, chunked, indexed), or ALiBi, whose bias counts places in the
    row, which packing would change.
    """
    config = text_config(model)
    family = FAMILIES.get(config.model_type)
    if (family is not None and family.alibi) or getattr(config, "alibi", False):
        return None
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or [_ALL[window is not None]] * len(
        layers_of(model)
    )
    known = {"full_attention": None, "sliding_attention": window}
    return [known[kind] for kind in kinds] if set(kinds) <= set(known) else None


_ALL = ("full_attention", "sliding_attention")


def causal_alone(model: PreTrainedModel) -> bool:
    """Whether the model's attention is causal where it is given no mask: SDPA is told so, eager attention is not."""
    return getattr(text_config(model), "_attn_implementation", None) == "sdpa"

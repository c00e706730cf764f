"""The forking batch: one forward pass that carries all streams of a tree of candidates.

Streams lie one after another along the batch dimension, `lines` rows each. A wrapper around every decoder layer does at
its layer what the tree says, for any family: it repeats what the layer is given, supplies the attention mask itself and
forwards everything else, so that no family's forward is written again here.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.devices import place_of
from lamina.models.families import Family
from lamina.models.modeling_lamina import patch_dtype, repair
from lamina.models.structure import family_of, layers_of
from lamina.models.variant import Patch
from lamina.sweep.candidates import Level, Tree
from lamina.sweep.packing import Batch


@dataclass
class Streams:
    """State of one forward pass, shared by all wrappers.

    `observe` takes the number of an observation and the two streams that it compares, (lines, T, C) each. `causal` says
    that attention without a mask is causal, and then picks its fastest kernel and does not repeat grouped heads.
    """

    batch: Batch
    tree: Tree
    windows: Sequence[int | None]
    own_mask: bool
    causal: bool
    observe: Callable[[int, torch.Tensor, torch.Tensor], None]
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    layer_tokens: int = 0

    def rows(self, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Rows of streams `start` … `end` - 1, (streams · lines, T, …)."""
        lines = len(self.batch.lines)
        return tensor[start * lines : end * lines]

    def mask(self, layer: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive attention mask of a layer, (lines, 1, T, T): 0 where a token may look, else the least number.

        None where it would only be causal.
        """
        window, length = self.windows[layer], self.batch.tokens.shape[1]
        if self.causal and self.batch.plain and (window is None or window >= length):
            return None
        if window not in self.masks:
            seen = self.batch.visible(window)[:, None]
            blank = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            self.masks[window] = blank.masked_fill_(~seen, torch.finfo(dtype).min)
        return self.masks[window]


class ForkingLayer(nn.Module):
    """Stands in for decoder layer `number`: splits, runs, skips, repairs and ends streams as the pass's tree says."""

    def __init__(self, layer: nn.Module, number: int, family: Family) -> None:
        super().__init__()
        self.layer = layer
        self.number = number
        self.place = place_of(layer)
        # The last module of a sub-layer is the one whose output is its contribution.
        self.parts: dict[str, nn.Module] = {}
        self.donors: dict[str, nn.Module] = {}  # what streams may run through instead, no part of the model
        if family.attention and family.mlp:
            self.parts = {
                "attention": layer.get_submodule(family.attention),
                "mlp": layer.get_submodule(family.mlp[-1]),
            }
        self.residual_inside = family.residual_inside
        # Most layers return the stream alone, some the first of a tuple; learnt when the layer runs outside a pass.
        self.returns_tuple = False
        self.state: Streams | None = None
        self._mask_index = list(inspect.signature(layer.forward).parameters).index("attention_mask")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """(streams · lines, T, C) to the streams that the layer leaves, in the form that it returns."""
        if self.state is None:
            output = self.layer(hidden, *args, **kwargs)
            self.returns_tuple = isinstance(output, tuple)
            return output
        # Streams that pass a layer by stay beside those that run.
        hidden, levels = hidden.to(self.place), self.state.tree.levels
        hidden = self._advance(levels[self.number], hidden, args, kwargs)
        if self.number == len(levels) - 2:
            # Behind the last layer there may be one more patch.
            hidden = self._advance(levels[-1], hidden, args, kwargs)
        return (hidden,) if self.returns_tuple else hidden

    def _advance(
        self, level: Level, hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        state = self.state
        assert state is not None
        wanted = [(branch.source, branch.operation.patch) for branch in level.branches]
        entering = output = self._gather([(hidden, *place) for place in wanted[: level.running]], hidden)
        if level.running:
            outputs, start = [], 0
            for donor, group in groupby(level.branches[: level.running], lambda branch: branch.operation.donor):
                together = list(group)
                silenced = {
                    part: [i for i, branch in enumerate(together) if part in branch.operation.without]
                    for part in self.parts
                }
                streams = state.rows(entering, start, start + len(together))
                outputs.append(self._run(donor, streams, len(together), silenced, args, kwargs))
                start += len(together)
            output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        # What each branch leaves: rows of the layer's output, or what passes it by.
        left: list[tuple[torch.Tensor, int, Patch | None]] = [(output, i, None) for i in range(level.running)]
        left += [(hidden, *place) for place in wanted[level.running :]]
        for view in level.views:
            runs = view.entering and view.before < level.running
            before = [(entering, view.before, None)] if runs else [left[view.before]]
            state.observe(view.number, self._gather(before, hidden), self._gather([left[view.after]], hidden))
        return self._gather([left[number] for number in level.kept], hidden)

    def _gather(self, places: Sequence[tuple[torch.Tensor, int, Patch | None]], like: torch.Tensor) -> torch.Tensor:
        """Streams (tensor, number, repair) one after another; a view where they lie so already."""
        state = self.state
        assert state is not None
        blocks: list[tuple[torch.Tensor, int, int, Patch | None]] = []
        for tensor, number, patch in places:
            if blocks and blocks[-1][0] is tensor and blocks[-1][2] == number and blocks[-1][3] is patch is None:
                blocks[-1] = (tensor, blocks[-1][1], number + 1, None)
            else:
                blocks.append((tensor, number, number + 1, patch))
        found = [self._repaired(state.rows(tensor, start, end), patch) for tensor, start, end, patch in blocks]
        return torch.cat(found) if len(found) > 1 else found[0] if found else like[:0]

    def _repaired(self, stream: torch.Tensor, patch: Patch | None) -> torch.Tensor:
        """The stream as a materialised variant would repair it."""
        if patch is None:
            return stream
        to = (stream.device, patch_dtype(next(self.layer.parameters()).dtype))
        return repair(stream, patch.operator.to(*to), None if patch.bias is None else patch.bias.to(*to))

    def _run(
        self,
        donor: str | None,
        hidden: torch.Tensor,
        copies: int,
        silenced: dict[str, list[int]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        state = self.state
        assert state is not None
        lines = len(state.batch.lines)

        def repeat(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] % lines == 0:
                # One line broadcasts by itself: no copies of a long mask. ALiBi's biases do not, being reshaped.
                alone = copies == 1 or (value.shape[0] == 1 and state.own_mask)
                return value if alone else value.repeat(copies, *[1] * (value.ndim - 1))
            if isinstance(value, tuple):
                return tuple(repeat(part) for part in value)
            return value

        if state.own_mask:
            mask = state.mask(self.number, hidden.dtype)
            if len(args) >= self._mask_index:
                args = (*args[: self._mask_index - 1], mask, *args[self._mask_index :])
            else:
                kwargs = {**kwargs, "attention_mask": mask}
        state.layer_tokens += hidden.shape[0] * hidden.shape[1]
        handles = [
            self.parts[component].register_forward_hook(_silencer(numbers, copies, self.residual_inside))
            for component, numbers in silenced.items()
            if numbers
        ]
        try:
            module = self.donors[donor] if donor else self.layer
            output = module(hidden, *map(repeat, args), **{name: repeat(value) for name, value in kwargs.items()})
        finally:
            for handle in handles:
                handle.remove()
        return output[0] if isinstance(output, tuple) else output


def is_parallel(layer: nn.Module) -> bool:
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


def causal_alone(model: PreTrainedModel) -> bool:
    """Whether the model's attention is causal where it is given no mask: SDPA is told so, eager attention is not."""
    return getattr(model.config.get_text_config(), "_attn_implementation", None) == "sdpa"


def uses_alibi(model: PreTrainedModel) -> bool:
    """Whether positions enter by ALiBi: its bias counts places in the row, which packing would change."""
    return model.config.model_type == "bloom" or bool(getattr(model.config, "alibi", False))

"""One forward pass that carries all streams of a tree of candidates.

Streams are stacked along the batch dimension, `lines` rows each. A wrapper around every decoder
layer executes one level of the tree. It repeats the layer's arguments for each stream, supplies the
attention mask and forwards everything else. So it works for any family without a copy of the
family's forward.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.engine.candidates import Branch, Level, Tree, View
from lamina.engine.packing import PackedBatch
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.devices import place_of
from lamina.models.export import modeling_lamina
from lamina.models.families import FAMILIES
from lamina.models.structure import layers_of, stream_of, sublayers_of, text_config
from lamina.models.units import Visit

Observe = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Takes the number of an observation and the two streams to compare, (lines, T, C) each."""

Location = tuple[Any, ...]
"""Where a tensor is among nested arguments: indices and names from the outside in."""


def observe_nothing(number: int, before: torch.Tensor, after: torch.Tensor) -> None:
    """The observer of a pass without observations."""


def pass_on(hidden: torch.Tensor) -> torch.Tensor:
    """Return the head's input unchanged, as needed outside a pass."""
    return hidden


@dataclass
class PassState:
    """State of one forward pass, shared by all wrappers."""

    batch: PackedBatch
    tree: Tree
    layers: "Sequence[ForkingLayer]"
    windows: Sequence[int | None] | None
    """Attention window of each layer, for masks that lamina makes. None to use the model's own
    masks."""
    is_causal_unmasked: bool
    """Whether attention without a mask is causal.

    Without a mask, attention uses its fastest kernel and does not repeat grouped heads.
    """
    observe: Observe = observe_nothing
    n_copies: int = 1
    """Copies of the lines in the model's input: one, or one per stream if the model's code needs a
    constant batch size."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    """Attention masks by window."""
    arguments: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """By layer, the positional and keyword arguments that the model passed after the stream."""
    layer_tokens: int = 0
    """Token positions run so far, over all layers and streams."""

    @property
    def n_lines(self) -> int:
        """Rows of each stream."""
        return len(self.batch.lines)

    def run(self, visits: Sequence[Visit], hidden: torch.Tensor) -> torch.Tensor:
        """The output of one layer for one stream per visit, (visits · lines, T, C)."""
        return self.layers[visits[0].layer].run_visits(self, visits, hidden)

    def rows(self, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Rows of streams `start` … `end` - 1 of a tensor (streams · lines, T, …)."""
        return tensor[start * self.n_lines : end * self.n_lines]

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive attention mask of a layer, (lines, 1, T, T).

        It is 0 where a token may attend, else the lowest value of the dtype. None if a plain causal
        mask is enough.
        """
        n_tokens = self.batch.token_ids.shape[1]
        sees_all = window is None or window >= n_tokens
        if self.is_causal_unmasked and self.batch.has_plain_lines and sees_all:
            return None
        if window not in self.masks:
            is_visible = self.batch.visible_tokens(window)[:, None]
            zeros = torch.zeros(is_visible.shape, dtype=dtype, device=is_visible.device)
            self.masks[window] = zeros.masked_fill_(~is_visible, torch.finfo(dtype).min)
        return self.masks[window]


class _Stream(NamedTuple):
    """A stream: its index in a tensor (streams · lines, T, C), and a patch not yet applied."""

    tensor: torch.Tensor
    number: int
    patch: Patch | None = None


class ForkingLayer(nn.Module):
    """Replaces a decoder layer: splits, runs, repairs and ends streams as the tree of a pass says.

    Outside a pass it runs the layer, and records the sizes of its arguments and its output format.
    """

    def __init__(self, layer: nn.Module, index: int) -> None:
        super().__init__()
        self.layer = layer
        self.wrapped_index = index
        self.wrapped_device = place_of(layer)
        self.sublayers = sublayers_of(layer)
        # Layers of other models, by model, that streams may run through instead. A plain dict, so
        # that they do not become submodules.
        self.donors: dict[str, nn.Module] = {}
        self.pass_state: PassState | None = None
        # How many values the layer returns as a tuple; 0 if it returns the stream alone.
        self._n_returned = 0
        # The first dimension of each tensor argument, in batches of different sizes.
        self._first_sizes: dict[Location, list[int]] = {}
        arguments = list(inspect.signature(layer.forward).parameters)
        self._stream_name = arguments[0]
        self._mask_index: int | None = None
        if "attention_mask" in arguments:
            self._mask_index = arguments.index("attention_mask")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forget_arguments(self) -> None:
        """Forget the recorded sizes of the layer's arguments."""
        self._first_sizes.clear()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """(streams · lines, T, C) to the streams that leave the layer, in its output format."""
        if self.pass_state is None:
            return self._run_plainly(args, kwargs)
        hidden = args[0] if args else kwargs.pop(self._stream_name)
        self.pass_state.arguments[self.wrapped_index] = args[1:], kwargs
        output = self._run_levels(self.pass_state, hidden)
        if self._n_returned:
            return (output, *[None] * (self._n_returned - 1))
        return output

    def _run_plainly(self, args: Any, kwargs: Any) -> Any:
        output = self.layer(*args, **kwargs)
        self._n_returned = 0 if isinstance(output, torch.Tensor) else len(output)
        _map_tensors(self._note_size, (args, kwargs))
        return output

    def _note_size(self, tensor: torch.Tensor, location: Location) -> torch.Tensor:
        self._first_sizes.setdefault(location, []).append(tensor.shape[0])
        return tensor

    def _run_levels(self, state: PassState, hidden: torch.Tensor) -> torch.Tensor:
        """Take the streams through the layer's level of the tree; the last layer ends the pass.

        A layer that runs before its own depth needs arguments that the model has not passed yet. In
        such a tree the last layer, which has them all, takes the streams through all levels.
        """
        levels = state.tree.levels
        is_last = self.wrapped_index == len(levels) - 2
        if state.tree.looks_ahead and not is_last:
            return hidden
        first_level = 0 if state.tree.looks_ahead else self.wrapped_index
        if first_level == 0:
            hidden = hidden[: state.n_lines]
        hidden = hidden.to(self.wrapped_device)
        # After the last layer there may be one more patch.
        end_level = len(levels) if is_last else self.wrapped_index + 1
        for level in levels[first_level:end_level]:
            hidden = self._run_level(state, level, hidden)

        n_missing = state.n_copies * state.n_lines - len(hidden)
        if is_last and n_missing > 0:
            filling = hidden[:1].expand(n_missing, *hidden.shape[1:])
            hidden = torch.cat([hidden, filling])
        return hidden

    def _run_level(self, state: PassState, level: Level, hidden: torch.Tensor) -> torch.Tensor:
        """The streams that are kept after a level, computed from those before it."""
        streams_before = [self._run_again(state, hidden, branch) for branch in level.branches]
        entering = self._join(state, streams_before[: level.n_running], hidden)
        output = self._run_branches(state, level, entering)
        # The stream of each branch: a part of the layer's output, or one that skips the layer.
        streams_after = [_Stream(output, number) for number in range(level.n_running)]
        streams_after += streams_before[level.n_running :]
        for view in level.views:
            self._observe(state, level, view, entering, streams_after, hidden)
        return self._join(state, [streams_after[number] for number in level.kept], hidden)

    def _run_again(self, state: PassState, hidden: torch.Tensor, branch: Branch) -> _Stream:
        """The stream of a branch after the layers that run again."""
        step, patch = branch.operation
        if not step.again:
            return _Stream(hidden, branch.source, patch)
        stream = state.rows(hidden, branch.source, branch.source + 1)
        for _ in range(step.damping):
            output = stream
            for visit in step.again:
                output = state.run([visit], output)
            stream = modeling_lamina.damp(stream, output, step.damping)
        return _Stream(stream, 0, patch)

    def _observe(
        self,
        state: PassState,
        level: Level,
        view: View,
        entering: torch.Tensor,
        streams_after: Sequence[_Stream],
        hidden: torch.Tensor,
    ) -> None:
        """Pass the two streams of an observation to the observer."""
        unit_input = streams_after[view.before]
        if view.reads_input and view.before < level.n_running:
            unit_input = _Stream(entering, view.before)
        input_stream = self._join(state, [unit_input], hidden)
        output_stream = self._join(state, [streams_after[view.after]], hidden)
        state.observe(view.observation_number, input_stream, output_stream)

    def _run_branches(self, state: PassState, level: Level, entering: torch.Tensor) -> torch.Tensor:
        """The output (running · lines, T, C) of the branches that run.

        Branches through the same module are neighbours, so they run as one batch.
        """
        outputs: list[torch.Tensor] = []
        start = 0
        steps = [branch.operation.step for branch in level.branches[: level.n_running]]
        visits = [step.visit for step in steps if step.visit]
        for _, group in groupby(visits, lambda visit: (visit.layer, visit.donor)):
            group_visits = list(group)
            end = start + len(group_visits)
            outputs.append(state.run(group_visits, state.rows(entering, start, end)))
            start = end
        if not outputs:
            return entering
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _join(
        self, state: PassState, streams: Sequence[_Stream], like: torch.Tensor
    ) -> torch.Tensor:
        """Concatenate streams; a view if they already lie in this order."""
        parts: list[torch.Tensor] = []
        start = 0
        while start < len(streams):
            tensor, number, patch = streams[start]
            end = start + 1
            if patch is None:
                while end < len(streams) and _follows(streams[end - 1], streams[end]):
                    end += 1
            rows = state.rows(tensor, number, number + end - start)
            parts.append(self._repair(rows, patch))
            start = end
        if not parts:
            return like[:0]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _repair(self, stream: torch.Tensor, patch: Patch | None) -> torch.Tensor:
        if patch is None:
            return stream
        dtype = next(self.layer.parameters()).dtype
        return patch.to(stream.device, dtype).repaired(stream)

    def run_visits(
        self, state: PassState, visits: Sequence[Visit], hidden: torch.Tensor
    ) -> torch.Tensor:
        """The output of the layer, or of one donor, for one stream per visit.

        Sub-layers that a visit lacks add nothing to its stream.
        """
        module = self.donors[visits[0].donor] if visits[0].donor else self.layer
        repeat = partial(self._repeat_argument, state, len(visits))
        args, kwargs = state.arguments[self.wrapped_index]
        # The stream is the first argument, which is not repeated.
        (_, *positional), named = _map_tensors(repeat, ((None, *args), kwargs))
        if state.windows is not None:
            mask = state.mask(state.windows[self.wrapped_index], hidden.dtype)
            if mask is not None and state.n_lines > 1:
                mask = _repeat_rows(mask, len(visits))
            if self._mask_index is not None and len(positional) >= self._mask_index:
                positional[self._mask_index - 1] = mask
            else:
                named["attention_mask"] = mask

        state.layer_tokens += hidden.shape[0] * hidden.shape[1]
        with self._silenced_sublayers(visits):
            output = module(hidden.to(self.wrapped_device), *positional, **named)
        return stream_of(output).to(hidden.device)

    def _repeat_argument(
        self, state: PassState, n_streams: int, value: torch.Tensor, location: Location
    ) -> torch.Tensor:
        """Repeat a tensor argument of the layer for each stream if it has rows for each line."""
        # A tensor with the same size in every batch has no rows for a line, even if its size
        # happens to be a multiple of the number of lines.
        has_fixed_size = len(set(self._first_sizes.get(location, ()))) == 1
        if has_fixed_size or value.shape[0] % state.n_lines:
            return value
        if state.n_copies > 1:
            return value[: value.shape[0] // state.n_copies * n_streams]
        # A single line broadcasts, so a long mask is not copied. ALiBi biases do not broadcast,
        # because the model reshapes them.
        broadcasts = value.shape[0] == 1 and state.windows is not None
        if n_streams == 1 or broadcasts:
            return value
        return _repeat_rows(value, n_streams)

    @contextmanager
    def _silenced_sublayers(self, visits: Sequence[Visit]) -> Iterator[None]:
        """While open, the sub-layers that a visit lacks add nothing to its stream."""
        with ExitStack() as hooks:
            for component, sublayers in self.sublayers.items():
                lacking_streams = [
                    number for number, visit in enumerate(visits) if component in visit.without
                ]
                if not lacking_streams:
                    continue
                for sublayer in sublayers:
                    hook = silence_sublayer(lacking_streams, len(visits), sublayer.residual)
                    handle = sublayer.module.register_forward_hook(hook, with_kwargs=True)
                    hooks.enter_context(handle)
            yield


def _follows(first: _Stream, second: _Stream) -> bool:
    """Whether two streams lie one after the other in one tensor, and the second needs no patch."""
    is_neighbour = second.tensor is first.tensor and second.number == first.number + 1
    return is_neighbour and second.patch is None


def _map_tensors(
    change: Callable[[torch.Tensor, Location], Any], value: Any, location: Location = ()
) -> Any:
    """A copy of nested tuples, lists and dicts with `change(tensor, location)` for each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value, location) if value.ndim else value
    if type(value) in (tuple, list):
        return type(value)(
            _map_tensors(change, item, (*location, index)) for index, item in enumerate(value)
        )
    if type(value) is dict:
        return {name: _map_tensors(change, item, (*location, name)) for name, item in value.items()}
    return value


def _repeat_rows(value: torch.Tensor, n_copies: int) -> torch.Tensor:
    """The rows of a tensor, `n_copies` times."""
    return value.repeat(n_copies, *[1] * (value.ndim - 1))


def silence_sublayer(
    stream_numbers: list[int], n_streams: int, residual_inside: bool
) -> Callable[..., Any]:
    """A hook that removes a sub-layer's contribution from some of the streams in its output.

    If the sub-layer adds the residual itself (BLOOM passes it as an argument), the residual
    remains.
    """

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        value = (output[0] if isinstance(output, tuple) else output).clone()
        # OPT flattens lines and tokens before its MLP, so rows are counted in the output.
        n_rows = value.shape[0] // n_streams
        for stream_number in stream_numbers:
            rows = slice(stream_number * n_rows, (stream_number + 1) * n_rows)
            if residual_inside:
                residual = named["residual"] if "residual" in named else inputs[1]
                value[rows] = residual[rows]
            else:
                value[rows] = 0
        return (value, *output[1:]) if isinstance(output, tuple) else value

    return hook


class SelectingHead(nn.Module):
    """Replaces the LM head, so that only some positions are multiplied by its matrix.

    The model still applies its own soft-capping and logit scale.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.make_input: Callable[[torch.Tensor], torch.Tensor] = pass_on

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("head"), name)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(streams · lines, T, C) to (1, streams · positions, V)."""
        return self.head(self.make_input(hidden))


@contextmanager
def wrap_layers(model: PreTrainedModel) -> Iterator[tuple[Sequence[ForkingLayer], SelectingHead]]:
    """While open, every layer and the head of the model are wrapped.

    Raises LaminaError if the model has no head.
    """
    layers = list(layers_of(model))
    head = model.get_output_embeddings()
    if head is None:
        raise LaminaError(
            f"{type(model).__name__} has no output embedding, so it cannot score tokens. Use a "
            "causal language model."
        )
    wrappers = [ForkingLayer(layer, index) for index, layer in enumerate(layers)]
    selecting_head = SelectingHead(head)
    try:
        _install(model, wrappers, selecting_head)
        yield wrappers, selecting_head
    finally:
        _install(model, layers, head)


@contextmanager
def unwrap_layers(
    model: PreTrainedModel, wrappers: Sequence[ForkingLayer], head: SelectingHead
) -> Iterator[None]:
    """While open, the model is as it was before its layers and its head were wrapped."""
    try:
        _install(model, [wrapper.layer for wrapper in wrappers], head.head)
        yield
    finally:
        _install(model, wrappers, head)


def _install(model: PreTrainedModel, modules: Sequence[nn.Module], head: nn.Module) -> None:
    """Give a model these layers and this head."""
    layers = layers_of(model)
    for index, module in enumerate(modules):
        layers[index] = module
    model.set_output_embeddings(head)


def find_parallel_layers(layers: Iterable[nn.Module]) -> list[int]:
    """Indices of the layers whose attention and MLP read the same input.

    In GPT-NeoX and Falcon, an option of the configuration decides this.
    """
    return [index for index, layer in enumerate(layers) if _is_parallel(layer)]


def _is_parallel(layer: nn.Module) -> bool:
    """The first known option that a layer or its configuration has; False if it has none."""
    for option in ("use_parallel_residual", "parallel_attn"):
        for holder in (layer, getattr(layer, "config", None)):
            value = getattr(holder, option, None)
            if isinstance(value, bool):
                return value
    return False


def attention_windows(model: PreTrainedModel) -> list[int | None] | None:
    """How far back each layer's attention looks, in positions; None for all the way.

    None instead of the list if our own mask cannot express what the layers see. This holds for
    mixers other than full and sliding attention (linear, state-space, convolutional, chunked,
    indexed), and for ALiBi: its bias counts tokens of the row, which packing would change.
    """
    config = text_config(model)
    family = FAMILIES.get(config.model_type)
    has_alibi = (family is not None and family.alibi) or getattr(config, "alibi", False)
    if has_alibi:
        return None
    sliding_window = getattr(config, "sliding_window", None)
    window_by_type = {"full_attention": None, "sliding_attention": sliding_window}
    layer_types = getattr(config, "layer_types", None)
    if not layer_types:
        return [sliding_window] * len(layers_of(model))
    if not set(layer_types) <= set(window_by_type):
        return None
    return [window_by_type[layer_type] for layer_type in layer_types]


def causal_alone(model: PreTrainedModel) -> bool:
    """Whether attention without a mask is causal: SDPA sets a flag for it, eager does not."""
    return getattr(text_config(model), "_attn_implementation", None) == "sdpa"

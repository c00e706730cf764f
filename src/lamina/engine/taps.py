"""Runs a model over sequences and hands out its residual stream at layer boundaries.

Boundary l is the stream that enters layer l; boundary L leaves the last layer, before the final
norm. Boundary l + ½ lies between attention and MLP of layer l: the output of the layer without its
MLP.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.engine.batches import by_length, in_two, pad_sequences, run_in_halves
from lamina.engine.forking import ForkingLayer, find_parallel_layers, silence_sublayer
from lamina.errors import LaminaError
from lamina.models import check, cutting
from lamina.models.boundary import assert_finite
from lamina.models.devices import move_tensors, place_of
from lamina.models.structure import layers_of, stream_of, sublayers_of, text_config

CallLayer = Callable[[nn.Module, torch.Tensor], torch.Tensor]
"""Calls a layer on a stream (lines, T, C), with the other arguments of a recorded call."""


@dataclass(frozen=True)
class Batch:
    """The batch that a pass ran on."""

    samples: list[int]
    """Indices of the sequences, (lines,)."""
    real: torch.Tensor
    """True where a token is not padding, (lines, T), on the device."""
    outputs: Sequence[torch.Tensor] = ()
    """Outputs of the requested modules, (lines, T, C) each, in the order of the request."""
    called: Mapping[float, CallLayer] = field(default_factory=dict)
    """By boundary, how the layer after it was called."""


Consumer = Callable[[Batch, Mapping[float, torch.Tensor]], None]
"""Takes a batch and its streams by boundary, (lines, T, C) in the model's dtype. It keeps none.

If it runs out of memory it must leave nothing behind, because it then gets both halves of the
batch.
"""

Run = Callable[
    [PreTrainedModel, Sequence[Sequence[int]], Sequence[float], Consumer, int, Sequence[nn.Module]],
    None,
]
"""`run_sequences`, or a function that passes on other streams at some boundaries."""


@torch.no_grad()
def run_sequences(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    boundaries: Sequence[float],
    consumer: Consumer,
    token_budget: int,
    outputs: Sequence[nn.Module] = (),
    whole: bool = False,
) -> None:
    """Run a model over sequences and hand a consumer its streams at boundaries, batch by batch.

    The head and the layers after the last boundary do not run, because they do not change these
    streams. A batch that is too large for a GPU is halved.

    token_budget: The budget of a batch, see `count_positions`.
    outputs: Modules before the last boundary whose outputs the consumer gets too.
    whole: Whether a batch that does not fit is an error, instead of being halved.

    Raises LaminaError if a stream holds NaN, if the model has several residual streams, or if a
    boundary within a layer does not exist.
    """
    sorted_boundaries = sorted(set(boundaries))
    layers_without_mlp = _copy_without_mlp(model, sorted_boundaries)
    with ExitStack() as contexts:
        contexts.enter_context(_ending_at(model, sorted_boundaries))
        tap = contexts.enter_context(_open_tap(model, sorted_boundaries, layers_without_mlp))
        recorder = contexts.enter_context(record_outputs(outputs, model.device))
        runner = _BatchRunner(model, sequences, consumer, tap, recorder)

        max_positions = count_positions(token_budget, len(sorted_boundaries) + len(outputs))
        for samples in by_length([len(sequence) for sequence in sequences], max_positions):
            if whole:
                runner.run_batch(samples)
            else:
                run_in_halves(runner.run_batch, samples, in_two)


class _BatchRunner:
    """Runs one batch after another and hands its streams to a consumer."""

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: Sequence[Sequence[int]],
        consumer: Consumer,
        tap: "_StreamTap",
        recorder: "OutputRecorder",
    ) -> None:
        self.model = model
        self.body: Any = model.base_model
        self.sequences = sequences
        self.consumer = consumer
        self.tap = tap
        self.recorder = recorder

    def run_batch(self, samples: list[int]) -> None:
        """Run the sequences with these indices. Nothing of the batch is kept."""
        try:
            batch_sequences = [self.sequences[index] for index in samples]
            token_ids, is_real = pad_sequences(batch_sequences, self.model.device)
            self.body(input_ids=token_ids, attention_mask=is_real.long(), use_cache=False)
            _check_streams(self.model, self.tap.streams, is_real)
            outputs = self.recorder.shaped_like(token_ids)
            self.consumer(Batch(samples, is_real, outputs, self.tap.calls), self.tap.streams)
        finally:
            self.tap.clear()
            self.recorder.outputs.clear()


def _check_streams(
    model: PreTrainedModel, streams: Mapping[float, torch.Tensor], is_real: torch.Tensor
) -> None:
    """Refuse streams with NaN, and models with several parallel streams."""
    hidden_size = text_config(model).hidden_size
    if any(stream.dim() != 3 or stream.shape[-1] != hidden_size for stream in streams.values()):
        raise LaminaError(
            f"the model family '{text_config(model).model_type}' has several parallel residual "
            "streams, which passes over activations do not support. Use a metric of a removal "
            "sweep: accuracy, perplexity or output_kl."
        )
    if streams:
        # All streams at once, because each check synchronises with the GPU.
        sums = [stream.sum(-1).masked_fill(~is_real, 0) for stream in streams.values()]
        assert_finite(
            torch.stack(sums), model.config.model_type, "the forward pass over the calibration"
        )


def enter_at_boundary(variant: PreTrainedModel, position: float, boundary: float) -> Run:
    """A pass that replaces the model's stream at `boundary` by one of a variant.

    The new stream is the input of layer `position` of the variant. The variant runs over the
    model's batches, so that both streams have the same tokens.
    """

    def run_both(
        model: PreTrainedModel,
        sequences: Sequence[Sequence[int]],
        boundaries: Sequence[float],
        consumer: Consumer,
        token_budget: int,
        outputs: Sequence[nn.Module] = (),
    ) -> None:
        def replace_stream(batch: Batch, streams: Mapping[float, torch.Tensor]) -> None:
            """Run the variant over a batch of the model, and hand over the streams of both."""

            def consume_both(_: Batch, variant_streams: Mapping[float, torch.Tensor]) -> None:
                consumer(batch, {**streams, boundary: variant_streams[position]})

            # Batches are sorted as `by_length` sorts, so this is one batch with the same lines in
            # the same order.
            lines = [sequences[index] for index in batch.samples]
            line_budget = 2 * batch.real.numel()
            run_sequences(variant, lines, [position], consume_both, line_budget, whole=True)

        run_sequences(model, sequences, boundaries, replace_stream, token_budget, outputs)

    return run_both


def _copy_without_mlp(model: PreTrainedModel, boundaries: Sequence[float]) -> dict[int, nn.Module]:
    """Copies, without their MLP, of the layers within which boundaries lie, by layer index.

    They share the model's tensors.

    Raises LaminaError if a layer is not attention followed by MLP, each added to the stream.
    """
    layer_indices = sorted({int(boundary) for boundary in boundaries if boundary % 1})
    if not layer_indices:
        return {}
    layers = layers_of(model)
    without_mlp = {index: _copy_without(layers[index], "mlp") for index in layer_indices}
    without_attention = {
        index: _copy_without(layers[index], "attention") for index in layer_indices
    }

    layer_ends: list[float] = []
    for index in layer_indices:
        layer_ends += [index, index + 1]
    body: Any = model.base_model
    with _open_tap(model, layer_ends, {}) as tap:
        token_ids = torch.tensor([check.probe_sequence(model)], device=model.device)
        body(input_ids=token_ids, use_cache=False)

    # The same arithmetic in the same order gives the same numbers.
    tolerance = max(1e-5, torch.finfo(model.dtype).eps)
    parallel_layers = find_parallel_layers(layers)
    for index in layer_indices:
        call_layer = tap.calls[index]
        stream = tap.streams[index].to(place_of(without_mlp[index]))
        stream = call_layer(without_mlp[index], stream)
        stream = call_layer(without_attention[index], stream)
        layer_output = tap.streams[index + 1]
        distance = check.logit_distance(stream[0], layer_output[0], torch.float32)
        if index in parallel_layers or not distance <= tolerance:
            raise LaminaError(
                f"layer {index} of the model family '{text_config(model).model_type}' has no "
                "residual stream between attention and MLP: the MLP does not read the output of "
                "attention, or the stream is normalised. No repair fits its removed sub-layers. "
                "Write `repairs: [none]` or `units: layer`."
            )
    return without_mlp


def _copy_without(layer: nn.Module, component: str) -> nn.Module:
    """A copy of a layer whose attention or MLP adds nothing; it shares the layer's tensors."""
    if isinstance(layer, ForkingLayer):  # a pass within a session
        layer = layer.layer
    tensors = (*layer.parameters(), *layer.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    copied_layer = copy.deepcopy(layer, memo)
    for sublayer in sublayers_of(copied_layer)[component]:
        hook = silence_sublayer([0], 1, sublayer.residual)
        sublayer.module.register_forward_hook(hook, with_kwargs=True)
    return copied_layer


def count_positions(token_budget: int, n_kept_streams: int) -> int:
    """Token positions of a batch that keeps some streams, at the memory of `token_budget`.

    A position that runs through a layer takes about eight times the memory of one that is kept.
    """
    return max(1, 8 * token_budget // (8 + n_kept_streams))


@contextmanager
def _ending_at(model: PreTrainedModel, boundaries: Sequence[float]) -> Iterator[None]:
    """While open, the model ends with the layer that leads to the last boundary.

    The rest of the model is unchanged.
    """
    layers = layers_of(model)
    config = text_config(model)
    depth = len(layers)
    n_needed = ceil(max(1, *boundaries)) if boundaries else depth
    later_layers = list(layers[n_needed:])
    cutting.set_depth(config, depth - len(later_layers))
    del layers[depth - len(later_layers) :]
    try:
        yield
    finally:
        layers.extend(later_layers)
        cutting.set_depth(config, depth)


@contextmanager
def tap_boundaries(
    model: PreTrainedModel, boundaries: Sequence[float]
) -> Iterator[dict[float, torch.Tensor]]:
    """While open, every forward pass puts the stream at each boundary into the mapping.

    The streams are on the model's first device. No boundary may lie within a layer.
    """
    with _open_tap(model, boundaries, {}) as tap:
        yield tap.streams


class _StreamTap:
    """Layer hooks that keep the streams, and how the layers were called, by boundary."""

    def __init__(self, device: torch.device, layers_without_mlp: Mapping[int, nn.Module]) -> None:
        self.device = device
        self.layers_without_mlp = layers_without_mlp
        self.streams: dict[float, torch.Tensor] = {}
        self.calls: dict[float, CallLayer] = {}

    def keep_input(
        self, boundary: float, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keep the stream that enters a layer, or the one between its attention and its MLP."""
        stream = args[0] if args else kwargs["hidden_states"]
        named_arguments = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        call_layer = partial(_call_layer, args[1:], named_arguments)
        self.calls[boundary] = call_layer
        is_within_layer = bool(boundary % 1)
        if is_within_layer:
            stream = call_layer(self.layers_without_mlp[int(boundary)], stream)
        self.streams[boundary] = stream.to(self.device)

    def keep_output(
        self, boundary: float, module: nn.Module, args: tuple[Any, ...], output: Any
    ) -> None:
        """Keep the stream that leaves a layer."""
        self.streams[boundary] = stream_of(output).to(self.device)

    def clear(self) -> None:
        """Forget everything."""
        self.streams.clear()
        self.calls.clear()


@contextmanager
def _open_tap(
    model: PreTrainedModel,
    boundaries: Sequence[float],
    layers_without_mlp: Mapping[int, nn.Module],
) -> Iterator[_StreamTap]:
    """While open, the tap keeps the streams of every forward pass at the boundaries."""
    layers = layers_of(model)
    tap = _StreamTap(model.device, layers_without_mlp)
    with ExitStack() as hooks:
        for boundary in boundaries:
            if boundary < len(layers):
                keep_input = partial(tap.keep_input, boundary)
                layer = layers[int(boundary)]
                hook = layer.register_forward_pre_hook(keep_input, with_kwargs=True)
            else:
                keep_output = partial(tap.keep_output, len(layers))
                hook = layers[-1].register_forward_hook(keep_output)
            hooks.enter_context(hook)
        yield tap


def _call_layer(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], layer: nn.Module, stream: torch.Tensor
) -> torch.Tensor:
    """Call a layer on a stream with the other arguments of the model's own layer."""
    # The arguments are on the device of the model's own layer.
    moved_args = move_tensors(args, stream.device)
    moved_kwargs = {name: move_tensors(value, stream.device) for name, value in kwargs.items()}
    return stream_of(layer(stream, *moved_args, **moved_kwargs))


class OutputRecorder:
    """Hooks that keep the outputs of modules, in the order of the modules."""

    def __init__(self, n_modules: int, device: torch.device) -> None:
        self.n_modules = n_modules
        self.device = device
        self.outputs: dict[int, torch.Tensor] = {}

    def keep_output(
        self, number: int, module: nn.Module, args: tuple[Any, ...], output: Any
    ) -> None:
        """Keep a copy, since a layer may add to the output in place."""
        self.outputs[number] = stream_of(output).to(self.device, copy=True)

    def shaped_like(self, token_ids: torch.Tensor) -> list[torch.Tensor]:
        """The outputs as (lines, T, C): some families run MLPs on a list of tokens."""
        return [self.outputs[number].view(*token_ids.shape, -1) for number in range(self.n_modules)]


@contextmanager
def record_outputs(modules: Sequence[nn.Module], device: torch.device) -> Iterator[OutputRecorder]:
    """While open, the recorder keeps the outputs of the modules in every forward pass."""
    recorder = OutputRecorder(len(modules), device)
    with ExitStack() as hooks:
        for number, module in enumerate(modules):
            keep_output = partial(recorder.keep_output, number)
            hooks.enter_context(module.register_forward_hook(keep_output))
        yield recorder

"""One way to run a model over sequences and look at its residual stream at the boundaries of its layers.

Boundary l is the stream entering layer l; boundary L leaves the last layer, before the final norm. Boundary l + ½ is
between attention and MLP of layer l: what the layer gives without its MLP.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.engine.batches import by_length, halved, in_two, padded
from lamina.engine.forking import ForkingLayer, parallel, silencer
from lamina.errors import LaminaError
from lamina.models import check, cutting
from lamina.models.boundary import assert_finite
from lamina.models.devices import move_tensors, place_of
from lamina.models.structure import halves, layers_of, text_config


@dataclass(frozen=True)
class Batch:
    """What a pass ran on."""

    samples: list[int]  # numbers of the sequences, (lines,)
    real: torch.Tensor  # True where a token is real and not padding, (lines, T), on the device
    outputs: Sequence[
        torch.Tensor
    ] = ()  # of the modules that were asked for, (lines, T, C) each, in their order
    # By boundary, a function that calls a layer on a stream as the layer behind the boundary was called.
    called: Mapping[float, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = field(
        default_factory=dict
    )


Consumer = Callable[[Batch, Mapping[float, torch.Tensor]], None]
"""Takes a batch and its streams by boundary, (lines, T, C) each in the model's dtype, and keeps none of them.

It leaves nothing behind if memory runs out in it, because it then gets both halves of the batch.
"""

Run = Callable[
    [PreTrainedModel, Sequence[Sequence[int]], Sequence[float], Consumer, int, Sequence[nn.Module]],
    None,
]
"""`run`, or a function that hands over other streams at some boundaries."""


@torch.no_grad()
def run(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    boundaries: Sequence[float],
    consumer: Consumer,
    tokens: int,
    outputs: Sequence[nn.Module] = (),
    whole: bool = False,
) -> None:
    """Run `model` over the sequences and hand `consumer` the streams at `boundaries`, batch by batch on the device.

    Only the body runs, and no layer behind the last boundary: the rest does not change these streams. `tokens` bounds a
    batch, see `positions`; a batch too large for a GPU is halved, unless batches must stay `whole`. `outputs` are
    modules before the last boundary whose outputs are wanted too.

    Raises LaminaError if a stream holds NaN, the model has more than one, or a boundary within a layer does not exist.
    """
    wanted, width = sorted(set(boundaries)), text_config(model).hidden_size
    body: Any = model.base_model
    inner = _without_mlp(model, wanted)
    with (
        _ending_at(model, wanted),
        tapped(model, wanted, inner) as (streams, called),
        _listening(outputs, model.device) as given,
    ):

        def once(samples: list[int]) -> None:
            try:
                ids, real = padded([sequences[number] for number in samples], model.device)
                body(input_ids=ids, attention_mask=real.long(), use_cache=False)
                _check(model, streams, real, width)
                # Some families run MLPs on a list of tokens.
                seen = [given[n].view(*ids.shape, -1) for n in range(len(outputs))]
                consumer(Batch(samples, real, seen, called), streams)
            finally:
                for kept in (streams, called, given):
                    kept.clear()

        budget = positions(tokens, len(wanted) + len(outputs))
        for samples in by_length([len(sequence) for sequence in sequences], budget):
            if whole:
                once(samples)
            else:
                halved(once, samples, in_two)


def _check(
    model: PreTrainedModel, streams: Mapping[float, torch.Tensor], real: torch.Tensor, width: int
) -> None:
    if any(stream.dim() != 3 or stream.shape[-1] != width for stream in streams.values()):
        raise LaminaError(
            f"the model family '{text_config(model).model_type}' has several residual streams beside each other"
            ", which passes over its activations do not know. Metrics of a removal sweep do: accuracy, "
            "perplexity, output_kl."
        )
    if streams:
        # All streams at once, because each look makes a GPU wait.
        sums = torch.stack([stream.sum(-1).masked_fill(~real, 0) for stream in streams.values()])
        assert_finite(sums, model.config.model_type, "the forward pass over the calibration")


def entering(variant: PreTrainedModel, position: float, boundary: float) -> Run:
    """A `run` that replaces the model's stream at `boundary` by the stream that enters layer `position` of a variant.

    The variant runs over each batch a second time, so that both streams stand beside each other token by token.
    """

    def run_both(
        model: PreTrainedModel,
        sequences: Sequence[Sequence[int]],
        boundaries: Sequence[float],
        consumer: Consumer,
        tokens: int,
        outputs: Sequence[nn.Module] = (),
    ) -> None:
        def beside(batch: Batch, streams: Mapping[float, torch.Tensor]) -> None:
            def give(_: Batch, entered: Mapping[float, torch.Tensor]) -> None:
                consumer(batch, {**streams, boundary: entered[position]})

            # Batches are sorted as `by_length` sorts, so this is one batch with the same lines in the same order.
            lines = [sequences[number] for number in batch.samples]
            run(variant, lines, [position], give, 2 * batch.real.numel(), whole=True)

        run(model, sequences, boundaries, beside, tokens, outputs)

    return run_both


def _without_mlp(model: PreTrainedModel, boundaries: Sequence[float]) -> dict[int, nn.Module]:
    """By number, copies without MLP of the layers within which boundaries lie; they share the model's tensors.

    Raises LaminaError if a layer is not its attention and then its MLP, each added to the stream before it.
    """
    numbers = sorted({int(boundary) for boundary in boundaries if boundary % 1})
    parts = [
        {number: _without(layers_of(model)[number], part) for number in numbers}
        for part in ("mlp", "attention")
    ]
    if numbers:
        body: Any = model.base_model
        with tapped(model, [place for number in numbers for place in (number, number + 1)]) as (
            streams,
            called,
        ):
            body(input_ids=torch.tensor([check.probe(model)], device=model.device), use_cache=False)
        for number in numbers:
            stream = streams[number].to(place_of(parts[0][number]))
            for part in parts:
                stream = called[number](part[number], stream)
            # The same arithmetic in the same order gives the same numbers.
            far = check.distance(stream[0], streams[number + 1][0], torch.float32)
            if number in parallel(layers_of(model)) or not far <= max(
                1e-5, torch.finfo(model.dtype).eps
            ):
                raise LaminaError(
                    f"no stream lies between attention and MLP in layer {number} of the model family "
                    f"'{text_config(model).model_type}': the MLP does not read what attention leaves, or a norm stands "
                    "on the stream. No repair fits a removed half of it. Write repairs: [none], or units: layer."
                )
    return parts[0]


def _without(layer: nn.Module, part: str) -> nn.Module:
    """A copy of a layer whose attention or MLP adds nothing; it shares the layer's tensors."""
    layer = layer.layer if isinstance(layer, ForkingLayer) else layer  # a pass within a session
    memo: dict[int, Any] = {
        id(tensor): tensor for tensor in (*layer.parameters(), *layer.buffers())
    }
    copied = copy.deepcopy(layer, memo)
    for half in halves(copied)[part]:
        half.module.register_forward_hook(silencer([0], 1, half.residual), with_kwargs=True)
    return copied


def positions(tokens: int, held: int) -> int:
    """Token positions of a batch when `held` streams are kept of it, so that memory follows the budget `tokens`.

    A position on its way through a layer takes about eight times the memory of one that is kept.
    """
    return max(1, 8 * tokens // (8 + held))


@contextmanager
def _ending_at(model: PreTrainedModel, boundaries: Sequence[float]) -> Iterator[None]:
    """While open, the model ends with the layer that leads to the last boundary; the rest of it stays as it is."""
    layers, config = layers_of(model), text_config(model)
    behind = list(layers[ceil(max(1, *boundaries)) :]) if boundaries else []
    depth = len(layers)
    cutting.set_depth(config, depth - len(behind))
    del layers[len(layers) - len(behind) :]
    try:
        yield
    finally:
        layers.extend(behind)
        cutting.set_depth(config, depth)


@contextmanager
def tapped(
    model: PreTrainedModel,
    boundaries: Sequence[float],
    inner: Mapping[int, nn.Module] | None = None,
) -> Iterator[tuple[dict[float, Any], dict[float, Any]]]:
    """While open, every forward pass puts the stream at each boundary into a mapping, on the model's first device, and
    into another how to call a layer there. `inner` are the layers without MLP that boundaries within layers need.
    """
    layers, on = layers_of(model), model.device
    streams: dict[float, torch.Tensor] = {}
    called: dict[float, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {}

    def entering(boundary: float) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stream = args[0] if args else kwargs["hidden_states"]
            others = {name: value for name, value in kwargs.items() if name != "hidden_states"}

            def call(layer: nn.Module, stream: torch.Tensor) -> torch.Tensor:
                # The other arguments are on the device of the model's own layer.
                rest, named = (
                    move_tensors(args[1:], stream.device),
                    move_tensors(list(others.values()), stream.device),
                )
                return _stream(layer(stream, *rest, **dict(zip(others, named, strict=True))))

            called[boundary] = call
            streams[boundary] = (
                call(inner[int(boundary)], stream) if inner and boundary % 1 else stream
            ).to(on)

        return hook

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        streams[len(layers)] = _stream(output).to(on)

    handles = [
        layers[int(boundary)].register_forward_pre_hook(entering(boundary), with_kwargs=True)
        if boundary < len(layers)
        else layers[-1].register_forward_hook(leaving)
        for boundary in boundaries
    ]
    try:
        yield streams, called
    finally:
        for handle in handles:
            handle.remove()


def _stream(output: Any) -> torch.Tensor:
    stream: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return stream


@contextmanager
def _listening(modules: Sequence[nn.Module], on: torch.device) -> Iterator[dict[int, torch.Tensor]]:
    """While open, every forward pass puts the output of each module into the mapping, by its number."""
    given: dict[int, torch.Tensor] = {}

    def giving(number: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
            # A copy, since a layer may add to it in place.
            given[number] = output.to(on, copy=True)

        return hook

    handles = [
        module.register_forward_hook(giving(number)) for number, module in enumerate(modules)
    ]
    try:
        yield given
    finally:
        for handle in handles:
            handle.remove()

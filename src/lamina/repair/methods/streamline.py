"""LLM-Streamline: the layer before a removed run is trained to give the output of the run's last layer.

The paper removes n + 1 layers and inserts one layer of the same class. This layer starts from the first of them and is
trained on the mean squared error of the stream behind them (arXiv 2403.19135). Here the plan removes the run (s, e) of
n layers. The additional layer is layer s - 1. The trained layer replaces it and maps X = h_{s-1} to Y = h_e of the
unpruned model. So a plan of n layers leaves L - n layers, as with every other repair. Before the first step, the
trained layer is layer s - 1, and the model is that of the plan. The state with the least held-out error is kept; this
can be the state before the first step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.config.entry import option
from lamina.config.repairs import Repair
from lamina.errors import LaminaError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.engine import taps
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch, Place
    from lamina.repair.protocol import Fit, Tensors


class Streamline(Repair):
    """The layer before a run, trained to do the work of the run as well, after arXiv 2403.19135: the number of layers
    is that of any other repair.
    """

    LINEAR = False

    method: Literal["streamline"] = "streamline"
    epochs: int = option(
        "Passes over the data; the best state by held-out error is kept.", 10, ge=0
    )
    learning_rate: float = option("Step size of Adam.", 0.001, gt=0)
    batch: int = option("Samples of a step.", 16, ge=1)

    def layer_passes(
        self, depth: int, sizes: Sequence[int], training: int, held_out: float
    ) -> float:
        # One pass. Then each run's layer, and the layer that shows how it is called, in training steps and on the
        # held-out samples.
        steps = self.epochs * (training + 1) * (1 - held_out)
        looks = 2 * ((self.epochs + 1) * held_out + 1 - held_out)
        return depth + sum(sizes) * (steps + looks)


TOKENS = 16384  # of a pass; a step of more is taken in several
HELD = 1 << 30  # bytes of streams that are kept between epochs

Weighed = list[tuple[Sequence[int], float]]
"""Sequences with the weight of a token of each."""


def refused(boundary: Boundary) -> str | None:
    """Why a run cannot be repaired: it begins at layer 0."""
    return (
        None
        if boundary[0]
        else (
            "streamline trains the layer before the removed layers, and before layer 0 there is none. Keep the first "
            f"layer (protect: [0] in the selector), or use another repair: {Repair.of_stream()}."
        )
    )


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Streamline,
    seed: int,
) -> Iterator[tuple[Boundary, Fit]]:
    """Train run after run, so that only one layer's gradients are held at a time.

    If the streams of all runs fit into `HELD` bytes, the base model runs once. Otherwise it runs once for each run. If
    not even the streams of a single run fit, it runs again in every epoch.

    Raises LaminaError if a run is refused, or the model's weights are quantised.
    """
    from lamina.engine import taps
    from lamina.engine.sources import split
    from lamina.models.structure import text_config

    if reason := next(filter(None, map(refused, boundaries)), None):
        raise LaminaError(reason)
    if getattr(text_config(model), "quantization_config", None) is not None:
        raise LaminaError(
            "streamline trains weights, and those of this model are quantised. "
            f"Use another repair: {Repair.of_stream()}."
        )
    seen: Weighed = []
    unseen: Weighed = []
    for source, flags in zip(sources, split(sources, seed), strict=True):
        for sequence, held in zip(source.sequences, flags, strict=True):
            if source.weight:
                (unseen if held else seen).append((sequence, source.weight))
    every, sequences = sorted(set(boundaries)), [sequence for sequence, _ in seen + unseen]
    together = _recalling(model, sequences, every)
    for boundary in every:
        run = together or _recalling(model, sequences, [boundary]) or taps.run
        yield boundary, _train(model, run, seen, unseen, boundary, options, seed)


def _recalling(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], boundaries: Sequence[Boundary]
) -> taps.Run | None:
    """A `taps.run` that reuses the streams of one pass, held on the device; None if they take more than `HELD` bytes.

    A model without the layers before the first boundary runs to show how that layer is called in a batch.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from lamina.engine import taps
    from lamina.models.boundary import share
    from lamina.models.structure import text_config
    from lamina.models.surgery import remove

    places = sorted({place for start, end in boundaries for place in (start - 1, start, end)})
    width = int(text_config(model).hidden_size) * torch.empty((), dtype=model.dtype).element_size()
    if sum(map(len, sequences)) * width * len(places) > HELD:
        return None
    held: dict[tuple[int, ...], dict[float, torch.Tensor]] = {}
    shallow: dict[float, PreTrainedModel] = {}

    def keep(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        for line, number in enumerate(batch.samples):
            tokens = tuple(sequences[number])
            held[tokens] = {place: streams[place][line, : len(tokens)].clone() for place in places}

    taps.run(model, sequences, places, keep, TOKENS)

    def run(
        model: PreTrainedModel,
        sequences: Sequence[Sequence[int]],
        boundaries: Sequence[float],
        consumer: taps.Consumer,
        tokens: int,
        outputs: Sequence[nn.Module] = (),
    ) -> None:
        first = min(boundaries)
        if first not in shallow:
            shallow[first] = share(model)
            remove(shallow[first], [str(layer) for layer in range(int(first))])

        def give(batch: taps.Batch, _: Mapping[float, torch.Tensor]) -> None:
            lines = [held[tuple(sequences[number])] for number in batch.samples]
            streams = {
                p: pad_sequence([line[p] for line in lines], batch_first=True) for p in boundaries
            }
            consumer(replace(batch, called={first: batch.called[0]}), streams)

        taps.run(shallow[first], sequences, [0], give, tokens)

    return run


def fit(statistics: Fit, options: Streamline) -> Fit:
    """The trained layer, because `collect` has done the training."""
    return statistics


def apply(variant: PreTrainedModel, place: Place, tensors: Tensors) -> None:
    """Give the layer before the boundary the trained weights."""
    from lamina.models.boundary import unshare_parameter
    from lamina.models.structure import layers_of

    layer = layers_of(variant)[place.position - 1]
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        unshare_parameter(layer.get_submodule(path), leaf).copy_(tensor)


def as_patch(tensors: Tensors) -> Patch | None:
    """None: the repair is not a linear map."""
    return None


def _train(
    model: PreTrainedModel,
    run: taps.Run,
    seen: Weighed,
    unseen: Weighed,
    boundary: Boundary,
    options: Streamline,
    seed: int,
) -> Fit:
    """The layer before one run, trained on the samples `seen`, in its state after the best epoch."""
    import torch

    from lamina.models.devices import copy_to_device
    from lamina.models.structure import layers_of
    from lamina.repair.protocol import Fit

    layer = (
        copy_to_device(layers_of(model)[int(boundary[0]) - 1], model.device)
        .float()
        .requires_grad_(True)
    )
    optimiser, order = torch.optim.Adam(layer.parameters(), lr=options.learning_rate), list(seen)
    errors: dict[str, float] = {}
    state: dict[str, torch.Tensor] = {}
    for epoch in range(options.epochs + 1):
        if epoch:
            random.Random(f"{seed} {epoch}").shuffle(order)
            for first in range(0, len(order), options.batch):
                optimiser.zero_grad()
                _run(model, run, order[first : first + options.batch], boundary, layer, train=True)
                optimiser.step()
        held_errors = _errors(model, run, unseen, boundary, layer, "heldout_error")
        if not state or held_errors["heldout_error"] < errors["heldout_error"]:
            errors, state = (
                held_errors,
                {name: weight.detach().clone() for name, weight in layer.named_parameters()},
            )
    layer.load_state_dict(state, strict=False)
    tokens = sum(len(sequence) for sequence, _ in seen)
    facts = {
        **_errors(model, run, seen, boundary, layer, "fit_error"),
        **errors,
        "parameters": 0,
        "n_samples": len(seen) + len(unseen),
        "n_tokens": tokens + sum(len(sequence) for sequence, _ in unseen),
        "trained_tokens": options.epochs * tokens,
    }
    return Fit(tensors=state, validated=state, facts=facts)


def _errors(
    model: PreTrainedModel,
    run: taps.Run,
    weighed: Weighed,
    boundary: Boundary,
    layer: nn.Module,
    name: str,
) -> dict[str, float]:
    """‖Y - Ŷ‖ / ‖Y‖ with the trained layer, and with the stream of the cut model."""
    after, before, norm = (
        _run(model, run, weighed, boundary, layer, train=False).clamp_min(0).sqrt().tolist()
    )
    return (
        {f"{name}_before": before / norm, name: after / norm}
        if norm > 0
        else {f"{name}_before": 0.0, name: 0.0}
    )


def _run(
    model: PreTrainedModel,
    run: taps.Run,
    weighed: Weighed,
    boundary: Boundary,
    layer: nn.Module,
    train: bool,
) -> torch.Tensor:
    """Weighted sums of ‖Y - Ŷ‖², ‖Y - h_s‖² and ‖Y‖² in float64; with `train` also the gradient of the mean error."""
    import torch

    from lamina.models.structure import text_config

    sums = torch.zeros(3, dtype=torch.float64, device=model.device)
    entries = int(text_config(model).hidden_size) * sum(
        weight * len(sequence) for sequence, weight in weighed
    )
    places = before, start, end = boundary[0] - 1, *boundary

    def add(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        given, cut, wanted = (streams[place] for place in (before, start, end))
        weight = torch.tensor(
            [weighed[number][1] for number in batch.samples], device=given.device
        )[:, None]
        weight = weight * batch.real

        def squares(error: torch.Tensor) -> torch.Tensor:
            return (error.float().square().sum(-1).masked_fill(~batch.real, 0) * weight).sum()

        # Weights stay in float32, and products have the model's own dtype.
        mixed = torch.autocast(given.device.type, given.dtype, enabled=given.dtype != torch.float32)
        with torch.set_grad_enabled(train), mixed:
            error = squares(wanted - batch.called[before](layer, given))
            share = error * (1 / entries)
        batch_sums = torch.stack([error.detach(), squares(wanted - cut), squares(wanted)]).double()
        if train:
            # All of them before any is added, so that a batch may be halved.
            trained = list(layer.parameters())
            gradients = torch.autograd.grad(share, trained, allow_unused=True)
            for parameter, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = (
                        gradient if parameter.grad is None else parameter.grad.add_(gradient)
                    )
        sums.add_(batch_sums)

    run(model, [sequence for sequence, _ in weighed], places, add, TOKENS, ())
    return sums

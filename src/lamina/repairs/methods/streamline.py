"""LLM-Streamline: the layer before a removed run is trained to do the work of the run too.

The paper removes n + 1 layers and inserts one layer of the same class. That layer starts from the
first of them, and is trained on the mean squared error of the stream after them (arXiv 2403.19135).

Here the plan removes the run (s, e) of n layers, and the additional layer is layer s - 1. The
trained layer replaces it and maps X = h_{s-1} to Y = h_e of the unpruned model. So a plan of n
layers leaves L - n layers, as with every other repair. Before the first step, the trained layer is
layer s - 1, and the model is that of the plan. The state with the least held-out error is kept;
this can be the state before the first step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.errors import LaminaError
from lamina.options.entry import option
from lamina.options.repairs import Repair

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from lamina.engine import taps
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch, Place
    from lamina.repairs.protocol import Fit, Tensors
    from lamina.repairs.samples import WeightedSequence


class Streamline(Repair):
    """The layer before a removed run, trained to do the run's work too (arXiv 2403.19135).

    The model has as many layers as with any other repair.
    """

    LINEAR = False

    method: Literal["streamline"] = "streamline"
    epochs: int = option(
        "Passes over the data; the weights with the lowest held-out error are kept.", 10, ge=0
    )
    learning_rate: float = option("Learning rate of Adam.", 0.001, gt=0)
    batch: int = option("Samples per training step.", 16, ge=1)

    def layer_passes(
        self, depth: int, runs: Sequence[int], training: int, held_out: float
    ) -> float:
        """How many layers each token of a fit goes through, see `Repair.layer_passes`."""
        # The base model runs once. After that two layers run for each removed run: the trained
        # layer, and the layer that shows how it is called. Both run in every training step, and
        # for the errors on the held-out samples, at the end also on the others.
        training_passes = self.epochs * (training + 1) * (1 - held_out)
        error_passes = 2 * ((self.epochs + 1) * held_out + 1 - held_out)
        return depth + sum(runs) * (training_passes + error_passes)


MAX_PASS_TOKENS = 16384  # a training step of more tokens is taken in several passes
MAX_KEPT_BYTES = 1 << 30  # of streams that are kept between epochs


def explain_refusal(boundary: Boundary) -> str | None:
    """Why a run cannot be repaired: it begins at layer 0. None if it can."""
    if boundary[0]:
        return None
    return (
        "streamline trains the layer before the removed layers, but layer 0 has none before it. "
        "Keep layer 0 (write `protect: [0]` in the selector), or use another repair: "
        f"{Repair.of_stream()}."
    )


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: Streamline,
    seed: int,
) -> Iterator[tuple[Boundary, Fit]]:
    """Train run after run, so that only one layer's gradients are held at a time.

    If the streams of all runs fit into `MAX_KEPT_BYTES`, the base model runs once. Otherwise it
    runs once for each run. If not even the streams of a single run fit, it runs again in every
    epoch.

    Raises LaminaError if a run is refused, or the model's weights are quantised.
    """
    from lamina.engine import taps
    from lamina.repairs.samples import split_samples

    _check_trainable(model, boundaries)
    fit_samples: list[WeightedSequence] = []
    heldout_samples: list[WeightedSequence] = []
    for samples in split_samples(sources, seed):
        fit_samples += samples.fit
        heldout_samples += samples.heldout
    sequences = [sample.token_ids for sample in fit_samples + heldout_samples]
    distinct_boundaries = sorted(set(boundaries))
    all_streams = _keep_streams(model, sequences, distinct_boundaries)
    for boundary in distinct_boundaries:
        kept_streams = all_streams or _keep_streams(model, sequences, [boundary])
        run = kept_streams.run if kept_streams else taps.run_sequences
        # The trainer is not bound to a name, so that its layer and the state of Adam are freed
        # before the next run.
        fit = _LayerTrainer(model, run, boundary, options).train(fit_samples, heldout_samples, seed)
        yield boundary, fit


def _check_trainable(model: PreTrainedModel, boundaries: Sequence[Boundary]) -> None:
    from lamina.models.structure import text_config

    for boundary in boundaries:
        reason = explain_refusal(boundary)
        if reason:
            raise LaminaError(reason)
    if getattr(text_config(model), "quantization_config", None) is not None:
        raise LaminaError(
            "streamline trains weights, but those of this model are quantised. Use another repair: "
            f"{Repair.of_stream()}."
        )


def _keep_streams(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], boundaries: Sequence[Boundary]
) -> _KeptStreams | None:
    """The streams that the training of some runs needs; None if they take too much memory."""
    import torch

    from lamina.models.structure import text_config

    positions: set[float] = set()
    for start, end in boundaries:
        positions |= {start - 1, start, end}
    element_size = torch.empty((), dtype=model.dtype).element_size()
    stream_bytes = int(text_config(model).hidden_size) * element_size
    n_tokens = sum(len(token_ids) for token_ids in sequences)
    if n_tokens * stream_bytes * len(positions) > MAX_KEPT_BYTES:
        return None
    return _KeptStreams(model, sequences, sorted(positions))


class _KeptStreams:
    """The streams of one pass over all sequences, kept on the device for all epochs."""

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: Sequence[Sequence[int]],
        positions: Sequence[float],
    ) -> None:
        from lamina.engine import taps

        self.sequences = sequences
        self.positions = positions
        self.streams_by_tokens: dict[tuple[int, ...], dict[float, torch.Tensor]] = {}
        self._models_from_layer: dict[float, PreTrainedModel] = {}
        taps.run_sequences(model, sequences, positions, self._keep_batch, MAX_PASS_TOKENS)

    def _keep_batch(self, batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        for line, sample_index in enumerate(batch.samples):
            token_ids = tuple(self.sequences[sample_index])
            self.streams_by_tokens[token_ids] = {
                position: streams[position][line, : len(token_ids)].clone()
                for position in self.positions
            }

    def run(
        self,
        model: PreTrainedModel,
        sequences: Sequence[Sequence[int]],
        boundaries: Sequence[float],
        consumer: taps.Consumer,
        token_budget: int,
        outputs: Sequence[nn.Module] = (),
    ) -> None:
        """As `taps.run_sequences`, with the kept streams.

        A layer must get the arguments that the model gives it for this batch. So a model that
        begins with the layer at the first boundary runs over the batch to record them.
        """
        from torch.nn.utils.rnn import pad_sequence

        from lamina.engine import taps

        first_boundary = min(boundaries)

        def give_kept_streams(batch: taps.Batch, _: Mapping[float, torch.Tensor]) -> None:
            kept_lines = [
                self.streams_by_tokens[tuple(sequences[sample_index])]
                for sample_index in batch.samples
            ]
            streams: dict[float, torch.Tensor] = {}
            for position in boundaries:
                streams_of_lines = [line[position] for line in kept_lines]
                streams[position] = pad_sequence(streams_of_lines, batch_first=True)
            consumer(replace(batch, called={first_boundary: batch.called[0]}), streams)

        taps.run_sequences(
            self._model_from_layer(model, first_boundary),
            sequences,
            [0],
            give_kept_streams,
            token_budget,
        )

    def _model_from_layer(self, model: PreTrainedModel, first_layer: float) -> PreTrainedModel:
        """A copy of the model without the layers before `first_layer`, which shares its weights."""
        from lamina.models.boundary import share_weights
        from lamina.models.surgery import apply_edits

        if first_layer not in self._models_from_layer:
            shortened_model = share_weights(model)
            apply_edits(
                shortened_model, [str(layer_index) for layer_index in range(int(first_layer))]
            )
            self._models_from_layer[first_layer] = shortened_model
        return self._models_from_layer[first_layer]


def fit(statistics: Fit, options: Streamline) -> Fit:
    """The trained layer: `collect` has done the training."""
    return statistics


def apply(variant: PreTrainedModel, location: Place, tensors: Tensors) -> None:
    """Give the layer before the boundary the trained weights."""
    from lamina.models.boundary import unshare_parameter
    from lamina.models.structure import layers_of

    layer = layers_of(variant)[location.position - 1]
    for name, tensor in tensors.items():
        module_path, _, parameter_name = name.rpartition(".")
        unshare_parameter(layer.get_submodule(module_path), parameter_name).copy_(tensor)


def as_patch(tensors: Tensors) -> Patch | None:
    """None: the repair is not a linear map."""
    return None


class _LayerTrainer:
    """Trains the layer before one run (s, e): X = h_{s-1} goes in, Y = h_e should come out."""

    def __init__(
        self, model: PreTrainedModel, run: taps.Run, boundary: Boundary, options: Streamline
    ) -> None:
        """`run` gives the streams of the base model."""
        import torch

        from lamina.models.devices import copy_to_device
        from lamina.models.structure import layers_of

        self.model = model
        self.run = run
        self.start, self.end = boundary
        self.before = self.start - 1
        self.options = options
        base_layer = layers_of(model)[int(self.before)]
        self.layer = copy_to_device(base_layer, model.device).float().requires_grad_(True)
        self.optimiser = torch.optim.Adam(self.layer.parameters(), lr=options.learning_rate)

    def train(
        self,
        fit_samples: Sequence[WeightedSequence],
        heldout_samples: Sequence[WeightedSequence],
        seed: int,
    ) -> Fit:
        """Train on the fit samples and keep the weights with the least held-out error."""
        from lamina.repairs.protocol import Fit

        heldout_errors = self._relative_errors(heldout_samples, "heldout_error")
        best_weights = self._copy_weights()
        shuffled_samples = list(fit_samples)
        for epoch in range(1, self.options.epochs + 1):
            random.Random(f"{seed} {epoch}").shuffle(shuffled_samples)
            self._train_epoch(shuffled_samples)
            epoch_errors = self._relative_errors(heldout_samples, "heldout_error")
            if epoch_errors["heldout_error"] < heldout_errors["heldout_error"]:
                heldout_errors = epoch_errors
                best_weights = self._copy_weights()
        self.layer.load_state_dict(best_weights, strict=False)

        n_fit_tokens = _count_tokens(fit_samples)
        facts = {
            **self._relative_errors(fit_samples, "fit_error"),
            **heldout_errors,
            "parameters": 0,
            "n_samples": len(fit_samples) + len(heldout_samples),
            "n_tokens": n_fit_tokens + _count_tokens(heldout_samples),
            "trained_tokens": self.options.epochs * n_fit_tokens,
        }
        return Fit(tensors=best_weights, validated=best_weights, facts=facts)

    def _copy_weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach().clone() for name, weight in self.layer.named_parameters()}

    def _train_epoch(self, samples: Sequence[WeightedSequence]) -> None:
        for first in range(0, len(samples), self.options.batch):
            self.optimiser.zero_grad()
            self._run_layer(samples[first : first + self.options.batch], with_gradients=True)
            self.optimiser.step()

    def _relative_errors(self, samples: Sequence[WeightedSequence], name: str) -> dict[str, float]:
        """‖Y - Ŷ‖ / ‖Y‖ with the trained layer under `name`, and that of the cut model."""
        sums = self._run_layer(samples, with_gradients=False)
        error, error_before, output_norm = sums.clamp_min(0).sqrt().tolist()
        if not output_norm > 0:
            return {f"{name}_before": 0.0, name: 0.0}
        return {f"{name}_before": error_before / output_norm, name: error / output_norm}

    def _run_layer(self, samples: Sequence[WeightedSequence], with_gradients: bool) -> torch.Tensor:
        """Weighted sums of ‖Y - Ŷ‖², ‖Y - h_s‖² and ‖Y‖² over samples, (3,) in float64.

        With gradients, that of the mean squared error is added to the layer's parameters.
        """
        import torch

        from lamina.models.structure import text_config

        channels = int(text_config(self.model).hidden_size)
        n_entries = channels * sum(sample.weight * len(sample.token_ids) for sample in samples)
        square_sums = torch.zeros(3, dtype=torch.float64, device=self.model.device)

        def add_batch(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
            x = streams[self.before]
            y = streams[self.end]
            weights = torch.tensor(
                [samples[sample_index].weight for sample_index in batch.samples], device=x.device
            )
            token_weights = weights[:, None] * batch.real
            # The layer's weights are in float32, and products have the model's own dtype.
            model_dtype = torch.autocast(x.device.type, x.dtype, enabled=x.dtype != torch.float32)
            with torch.set_grad_enabled(with_gradients), model_dtype:
                predicted_stream = batch.called[self.before](self.layer, x)
                squared_error = _sum_squares(y - predicted_stream, batch.real, token_weights)
                mean_error = squared_error * (1 / n_entries)
            squared_error_before = _sum_squares(y - streams[self.start], batch.real, token_weights)
            output_square = _sum_squares(y, batch.real, token_weights)
            batch_sums = torch.stack(
                [squared_error.detach(), squared_error_before, output_square]
            ).double()
            if with_gradients:
                _add_gradients(mean_error, list(self.layer.parameters()))
            square_sums.add_(batch_sums)

        sequences = [sample.token_ids for sample in samples]
        positions = [self.before, self.start, self.end]
        self.run(self.model, sequences, positions, add_batch, MAX_PASS_TOKENS, ())
        return square_sums


def _sum_squares(
    values: torch.Tensor, real: torch.Tensor, token_weights: torch.Tensor
) -> torch.Tensor:
    """Weighted sum over the real tokens of ‖values‖², from (lines, T, C)."""
    squares = values.float().square().sum(-1).masked_fill(~real, 0)
    return (squares * token_weights).sum()


def _add_gradients(loss: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Add the gradients of a loss to the parameters.

    All gradients are computed before one of them is added, so that a batch may be halved if memory
    runs out.
    """
    import torch

    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.add_(gradient)


def _count_tokens(samples: Sequence[WeightedSequence]) -> int:
    return sum(len(sample.token_ids) for sample in samples)

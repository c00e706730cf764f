"""Scores units without removing them, by their weights and by the gradients of the loss.

Taylor relevance estimates to first order how the loss changes without a unit. It is the sum over
the unit's weights w of abs(w · ḡ), where ḡ is the gradient of the loss averaged over the
calibration. One backward pass gives it. A second one, sample by sample, gives its error bar: with
the signs of ḡ fixed, the sum is the mean over samples of Σ w·sign(w·ḡ)·g, so every sample has its
own share.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine.batches import by_length, pad_sequences, shrink_to_memory
from lamina.models.boundary import assert_finite, share_weights
from lamina.models.structure import layers_of, sublayers_of
from lamina.models.surgery import apply_edits
from lamina.models.units import parse_unit

BACKWARD = 8
"""Memory of a backward pass, in forward passes: it keeps what every layer computed."""
NO_LABEL = -100  # label of a position that is not scored

AddGradient = Callable[[nn.Parameter, torch.Tensor], Any]


def sweep_rows(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    pass_: Literal["gradient", "weights"],
    token_budget: int,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` without its keys.

    In pass `weights` a unit has one row with its `magnitude`; in pass `gradient` it has a row for
    each sample, with `taylor` and `magnitude`.

    token_budget: The budget of a batch; the backward pass uses an eighth of it.
    """
    magnitudes = sum_magnitudes(model, units)
    if pass_ == "weights":
        return [{"unit": unit, "sample": 0, "magnitude": size} for unit, size in magnitudes.items()]
    shares_by_unit = taylor_relevance(
        model, samples, units, removed, max(1, token_budget // BACKWARD)
    )
    records: list[dict[str, Any]] = []
    for unit, unit_shares in shares_by_unit.items():
        for sample, share_of_sample in zip(samples, unit_shares, strict=True):
            is_finite = bool(share_of_sample.isfinite())
            records.append(
                {
                    "unit": unit,
                    "sample": sample.index,
                    "taylor": float(share_of_sample) if is_finite else float("inf"),
                    "magnitude": magnitudes[unit],
                }
            )
    return records


def sum_magnitudes(model: PreTrainedModel, units: Sequence[str]) -> dict[str, float]:
    """Sum of abs(w) over the weights of each unit of the base model, in float64."""
    unit_of_sum: list[str] = []
    weight_sums: list[torch.Tensor] = []
    for unit in units:
        for weight in _weights_of(model, unit):
            unit_of_sum.append(unit)
            # Sums move to one device, so that only one transfer is needed.
            weight_sums.append(weight.detach().abs().sum(dtype=torch.float64).to(model.device))

    magnitudes = dict.fromkeys(units, 0.0)
    if weight_sums:
        for unit, size in zip(unit_of_sum, torch.stack(weight_sums).tolist(), strict=True):
            magnitudes[unit] += size
    return magnitudes


def taylor_relevance(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    token_budget: int,
) -> dict[str, torch.Tensor]:
    """Each sample's share of each unit's Taylor relevance, (samples,) float64.

    The mean over samples is the score. The loss of a sample is the mean negative log-likelihood of
    its gold continuation's tokens.

    Raises LaminaError if the loss of a sample is NaN.
    """
    current_model = apply_edits(share_weights(model), list(removed)) if removed else model
    weights_by_unit = {unit: _weights_of(model, unit) for unit in units}
    weights = [weight for group in weights_by_unit.values() for weight in group]
    gradient_sums = summed_gradients(current_model, samples, weights, token_budget)
    taylor_shares = _TaylorShares(weights_by_unit, gradient_sums, len(samples))
    for sample_index, sample in enumerate(samples):
        with _gradients(current_model, weights, partial(taylor_shares.add_gradient, sample_index)):
            _losses(current_model, [sample]).sum().backward()
    return {unit: unit_shares.cpu() for unit, unit_shares in taylor_shares.by_unit.items()}


class _TaylorShares:
    """Σ w·sign(w·ḡ)·g of each unit and sample.

    gradient_sums: ḡ times the number of samples; the entries are consumed.
    """

    def __init__(
        self,
        weights_by_unit: dict[str, list[nn.Parameter]],
        gradient_sums: dict[nn.Parameter, torch.Tensor],
        n_samples: int,
    ) -> None:
        self.by_unit: dict[str, torch.Tensor] = {}
        self._unit_of: dict[nn.Parameter, str] = {}
        self._factors: dict[nn.Parameter, torch.Tensor] = {}
        for unit, weights in weights_by_unit.items():
            for weight in weights:
                self._unit_of[weight] = unit
                # w · sign(w · ḡ) = abs(w) · sign(ḡ)
                signs = gradient_sums.pop(weight).sign().to(weight.dtype)
                self._factors[weight] = weight.detach().abs() * signs
            device = weights[0].device
            self.by_unit[unit] = torch.zeros(n_samples, dtype=torch.float64, device=device)

    def add_gradient(self, sample_index: int, weight: nn.Parameter, gradient: torch.Tensor) -> None:
        """Add the gradient of one sample's loss with respect to one weight."""
        products = self._factors[weight].float() * gradient.float()
        self.by_unit[self._unit_of[weight]][sample_index] += products.sum(dtype=torch.float64)


def summed_gradients(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    wanted_weights: Sequence[nn.Parameter],
    token_budget: int,
) -> dict[nn.Parameter, torch.Tensor]:
    """The gradient of the samples' losses for each wanted weight, summed in float32.

    token_budget: The budget of a batch.
    """
    gradient_sums = _GradientSums(model, samples, wanted_weights)
    # A backward pass that fails has already added some of its gradients; `clear` undoes this.
    shrink_to_memory(
        gradient_sums.add_samples, token_budget, max(gradient_sums.lengths), gradient_sums.clear
    )
    return gradient_sums.by_weight


class _GradientSums:
    """Sums of gradients over samples, by weight, in float32."""

    def __init__(
        self, model: PreTrainedModel, samples: Sequence[Sample], weights: Sequence[nn.Parameter]
    ) -> None:
        self.model = model
        self.samples = samples
        self.lengths = [len(sample.sequence()) for sample in samples]
        self.by_weight = {
            weight: torch.zeros_like(weight, dtype=torch.float32) for weight in weights
        }

    def add_samples(self, token_budget: int) -> None:
        """Add all samples, in batches of at most `token_budget` positions."""
        weights = list(self.by_weight)
        for batch in by_length(self.lengths, token_budget):
            with _gradients(self.model, weights, self._add_gradient):
                _losses(self.model, [self.samples[index] for index in batch]).sum().backward()

    def _add_gradient(self, weight: nn.Parameter, gradient: torch.Tensor) -> None:
        self.by_weight[weight].add_(gradient)

    def clear(self) -> None:
        """Reset all sums to zero, also after a failed backward pass."""
        for weight, total in self.by_weight.items():
            weight.grad = None
            total.zero_()


@contextmanager
def _gradients(
    model: PreTrainedModel, wanted: Sequence[nn.Parameter], add: AddGradient
) -> Iterator[None]:
    """While open, a backward pass gives `add` the gradient of each wanted weight and keeps none.

    A weight that the loss does not depend on (an expert that no token was routed to) has none.
    """
    wanted_weights = set(wanted)
    flags = [(weight, weight.requires_grad) for weight in model.parameters()]
    for weight, _ in flags:
        weight.requires_grad_(weight in wanted_weights)
    hand_over = partial(_hand_over_gradient, add)
    with ExitStack() as hooks:
        for weight in wanted:
            hooks.enter_context(weight.register_post_accumulate_grad_hook(hand_over))
        try:
            yield
        finally:
            for weight, had_gradient in flags:
                weight.requires_grad_(had_gradient)


def _hand_over_gradient(add: AddGradient, weight: nn.Parameter) -> None:
    assert weight.grad is not None
    add(weight, weight.grad)
    weight.grad = None


def _weights_of(model: PreTrainedModel, unit: str) -> list[nn.Parameter]:
    """The parameters of a unit: a layer's, or those of its attention or MLP without their norms."""
    layer_index, component = parse_unit(unit)
    layer = layers_of(model)[layer_index]
    if component == "layer":
        return list(layer.parameters())
    return [
        weight
        for sublayer in sublayers_of(layer)[component]
        for weight in sublayer.module.parameters()
    ]


def _losses(model: PreTrainedModel, samples: Sequence[Sample]) -> torch.Tensor:
    """Mean negative log-likelihood of each sample's gold continuation, (samples,)."""
    gold_rows = [sample.rows[sample.gold] for sample in samples]
    sequences = [row.context + row.continuation for row in gold_rows]
    token_ids, is_real = pad_sequences(sequences, model.device)
    context_lengths = torch.tensor([len(row.context) for row in gold_rows], device=model.device)
    token_indices = torch.arange(token_ids.shape[1], device=model.device)
    is_scored = is_real & (token_indices >= context_lengths[:, None])
    labels = token_ids.masked_fill(~is_scored, NO_LABEL)[:, 1:]

    # Padding is on the right, where a causal model does not look, and it has no label.
    n_input = max(len(sample.sequence()) for sample in samples)
    output = model(input_ids=token_ids[:, :n_input], use_cache=False)
    logits = output.logits[:, : labels.shape[1]].float()
    token_losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    sample_losses: torch.Tensor = token_losses.sum(dim=1) / (labels != NO_LABEL).sum(dim=1)
    assert_finite(sample_losses, model.config.model_type, "the gradient pass over the calibration")
    return sample_losses

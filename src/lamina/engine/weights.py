"""Passes that remove nothing: the size of a unit's weights, and to first order the change of the loss without them.

Taylor relevance is the sum over a unit's weights w of abs(w · ḡ), ḡ being the gradient of the loss averaged over the
calibration. One backward pass gives it. A second one, sample by sample, gives its error bar: with the signs of ḡ fixed,
the sum is the mean over samples of Σ w·sign(w·ḡ)·g, so every sample has a share of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine.batches import by_length, fitting, padded
from lamina.models.boundary import assert_finite, share
from lamina.models.structure import halves, layers_of
from lamina.models.surgery import remove
from lamina.models.units import parse

# A backward pass keeps what every layer computed, about this many times a forward pass's memory.
BACKWARD = 8


def rows(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    pass_: Literal["gradient", "weights"],
    tokens: int,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` (without its keys): `magnitude` with one row per unit, or `taylor` and
    `magnitude` with one row per unit and sample.

    `tokens` bounds a batch; the backward pass uses an eighth of it.
    """
    sizes = magnitude(model, units)
    if pass_ == "weights":
        return [{"unit": unit, "sample": 0, "magnitude": size} for unit, size in sizes.items()]
    shares = taylor(model, samples, units, removed, max(1, tokens // BACKWARD))
    return [
        {
            "unit": unit,
            "sample": sample.index,
            "taylor": float(share_of) if share_of.isfinite() else float("inf"),
            "magnitude": sizes[unit],
        }
        for unit, values in shares.items()
        for sample, share_of in zip(samples, values, strict=True)
    ]


def magnitude(model: PreTrainedModel, units: Sequence[str]) -> dict[str, float]:
    """Sum of abs(w) over the weights of each unit of an unpruned model, in float64."""
    weights = [(unit, weight.detach()) for unit in units for weight in _weights(model, unit)]
    # Sums move to one device, so that only one transfer is needed.
    sums = [weight.abs().sum(dtype=torch.float64).to(model.device) for _, weight in weights]
    sizes = dict.fromkeys(units, 0.0)
    for (unit, _), size in zip(weights, torch.stack(sums).tolist() if sums else [], strict=True):
        sizes[unit] += size
    return sizes


def taylor(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    tokens: int,
) -> dict[str, torch.Tensor]:
    """Each sample's share of each unit's Taylor relevance, (samples,) float64; the mean over samples is the score.

    The loss of a sample is the mean negative log-likelihood of its gold continuation's tokens.

    Raises LaminaError if the loss of a sample is NaN.
    """
    cut = remove(share(model), list(removed)) if removed else model
    weights = {unit: _weights(model, unit) for unit in units}
    wanted = [weight for group in weights.values() for weight in group]
    sums = summed_gradients(cut, samples, wanted, tokens)
    # The factor of a gradient: w · sign(w · ḡ).
    signed = {
        weight: weight.detach().abs() * sums.pop(weight).sign().to(weight.dtype)
        for weight in wanted
    }
    unit_of = {weight: unit for unit, group in weights.items() for weight in group}
    shares = {
        unit: torch.zeros(len(samples), dtype=torch.float64, device=weights[unit][0].device)
        for unit in units
    }
    for number, sample in enumerate(samples):

        def add(weight: nn.Parameter, gradient: torch.Tensor, number: int = number) -> None:
            shares[unit_of[weight]][number] += (signed[weight].float() * gradient.float()).sum(
                dtype=torch.float64
            )

        with _gradients(cut, wanted, add):
            _losses(cut, [sample]).sum().backward()
    return {unit: values.cpu() for unit, values in shares.items()}


def summed_gradients(
    model: PreTrainedModel, samples: Sequence[Sample], wanted: Sequence[nn.Parameter], tokens: int
) -> dict[nn.Parameter, torch.Tensor]:
    """Gradient of the samples' losses by each wanted weight, summed in float32 whatever the dtype of the weights."""
    sums = {weight: torch.zeros_like(weight, dtype=torch.float32) for weight in wanted}
    lengths = [len(sample.sequence()) for sample in samples]

    def add(tokens: int) -> None:
        for group in by_length(lengths, tokens):
            with _gradients(model, wanted, lambda weight, gradient: sums[weight].add_(gradient)):
                _losses(model, [samples[number] for number in group]).sum().backward()

    def forget() -> None:
        for weight, total in sums.items():
            weight.grad = None
            total.zero_()

    # A backward pass that fails has already added some of its gradients; `forget` undoes this.
    fitting(add, tokens, max(lengths), forget)
    return sums


@contextmanager
def _gradients(
    model: PreTrainedModel,
    wanted: Sequence[nn.Parameter],
    add: Callable[[nn.Parameter, torch.Tensor], Any],
) -> Iterator[None]:
    """While open, a backward pass hands `add` the gradient of each wanted weight and keeps none.

    A weight that the loss does not depend on (an expert that no token was sent to) has no gradient.
    """
    chosen = set(wanted)
    before = [(weight, weight.requires_grad) for weight in model.parameters()]

    def take(weight: nn.Parameter) -> None:
        assert weight.grad is not None
        add(weight, weight.grad)
        weight.grad = None

    for weight, _ in before:
        weight.requires_grad_(weight in chosen)
    handles = [weight.register_post_accumulate_grad_hook(take) for weight in wanted]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for weight, flag in before:
            weight.requires_grad_(flag)


def _weights(model: PreTrainedModel, unit: str) -> list[nn.Parameter]:
    """The parameters that go with a unit: a whole layer's, or those of its attention or MLP without their norms."""
    number, component = parse(unit)
    layer = layers_of(model)[number]
    if component == "layer":
        return list(layer.parameters())
    return [weight for half in halves(layer)[component] for weight in half.module.parameters()]


def _losses(model: PreTrainedModel, samples: Sequence[Sample]) -> torch.Tensor:
    """Mean negative log-likelihood of each sample's gold continuation, (samples,)."""
    rows = [sample.rows[sample.gold] for sample in samples]
    tokens, real = padded([row.context + row.continuation for row in rows], model.device)
    contexts = torch.tensor([len(row.context) for row in rows], device=model.device)
    fed = max(len(sample.sequence()) for sample in samples)
    scored = real & (torch.arange(tokens.shape[1], device=model.device) >= contexts[:, None])
    labels = tokens.masked_fill(~scored, -100)[:, 1:]
    # Padding stands on the right, where a causal model does not look, and it has no label.
    logits = model(input_ids=tokens[:, :fed], use_cache=False).logits[:, : labels.shape[1]].float()
    per_token = cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    losses: torch.Tensor = per_token.sum(dim=1) / (labels != -100).sum(dim=1)
    assert_finite(losses, model.config.model_type, "the gradient pass over the calibration")
    return losses

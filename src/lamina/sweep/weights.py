"""Passes that remove nothing: how large a unit's weights are, and how much the loss would feel them go, to first order.

Taylor relevance is the sum over a unit's weights w of abs(w · ḡ), ḡ being the gradient of the loss averaged over the
calibration. One backward pass gives it. A second one, sample by sample, gives its error bar: with the signs of ḡ fixed,
the sum is the mean over samples of Σ w·sign(w·ḡ)·g, so every sample has a share of its own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.models.structure import family_of, layers_of
from lamina.models.surgery import parse, remove
from lamina.models.variant import share

# A backward pass keeps what every layer computed, about this many times a forward pass's memory.
BACKWARD = 8


def rows(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    what: Literal["gradient", "weights"],
    tokens: int,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` (without its keys): `magnitude`, one row per unit, or with it `taylor`, one per sample.

    `tokens` bounds a batch of the backward pass, an eighth of it being used.
    """
    sizes = magnitude(model, units)
    if what == "weights":
        return [{"unit": unit, "sample": 0, "magnitude": size} for unit, size in sizes.items()]
    shares = taylor(model, samples, units, removed, max(1, tokens // BACKWARD))
    return [
        {"unit": unit, "sample": sample.index, "taylor": float(share_of), "magnitude": sizes[unit]}
        for unit, values in shares.items()
        for sample, share_of in zip(samples, values, strict=True)
    ]


def magnitude(model: PreTrainedModel, units: Sequence[str]) -> dict[str, float]:
    """Sum of abs(w) over the weights of each unit of an unpruned model, in float64."""
    return {
        unit: sum(float(weight.detach().abs().sum(dtype=torch.float64)) for weight in _weights(model, unit))
        for unit in units
    }


def taylor(
    model: PreTrainedModel, samples: Sequence[Sample], units: Sequence[str], removed: Sequence[str], tokens: int
) -> dict[str, torch.Tensor]:
    """Each sample's share of each unit's Taylor relevance, (samples,) float64; the mean over samples is the score.

    The loss of a sample is the mean negative log-likelihood of its gold continuation's tokens.
    """
    cut = remove(share(model), list(removed)) if removed else model
    weights = {unit: _weights(model, unit) for unit in units}
    wanted = {id(weight) for group in weights.values() for weight in group}
    before = {name: weight.requires_grad for name, weight in cut.named_parameters()}
    try:
        for weight in cut.parameters():
            weight.requires_grad_(id(weight) in wanted)
        for batch in _batches(samples, tokens):
            _losses(cut, batch).sum().backward()
        signed = {
            unit: [weight.detach().abs() * weight.grad.sign() for weight in _with_gradient(group)]
            for unit, group in weights.items()
        }
        shares = {unit: torch.zeros(len(samples), dtype=torch.float64) for unit in units}
        for number, sample in enumerate(samples):
            cut.zero_grad()
            _losses(cut, [sample]).sum().backward()
            for unit, group in weights.items():
                shares[unit][number] = sum(
                    float((sign * weight.grad).sum(dtype=torch.float64))
                    for sign, weight in zip(signed[unit], _with_gradient(group), strict=True)
                )
        return shares
    finally:
        cut.zero_grad()
        for name, weight in cut.named_parameters():
            weight.requires_grad_(before[name])


def _weights(model: PreTrainedModel, unit: str) -> list[nn.Parameter]:
    """The parameters that go with a unit: a whole layer's, or those of its attention or MLP without their norms."""
    number, component = parse(unit)
    layer, family = layers_of(model)[number], family_of(model)
    if component == "layer":
        return list(layer.parameters())
    names = [str(family.attention)] if component == "attention" else list(family.mlp)
    return [weight for name in names for weight in layer.get_submodule(name).parameters()]


def _with_gradient(weights: Sequence[nn.Parameter]) -> list[Any]:
    """The weights that the loss depends on (an expert that no token was sent to has no gradient)."""
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    return list(weights)


def _batches(samples: Sequence[Sample], tokens: int) -> Iterator[list[Sample]]:
    """Samples of similar length, as many as fit into `tokens`."""
    batch: list[Sample] = []
    for sample in sorted(samples, key=lambda entry: len(entry.sequence())):
        if batch and len(sample.sequence()) * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(sample)
    yield batch


def _losses(model: PreTrainedModel, samples: Sequence[Sample]) -> torch.Tensor:
    """Mean negative log-likelihood of each sample's gold continuation, (samples,)."""
    length = max(len(sample.sequence()) for sample in samples)
    tokens = torch.zeros(len(samples), length, dtype=torch.long)
    labels = torch.full_like(tokens, -100)
    for number, sample in enumerate(samples):
        sequence, row = torch.tensor(sample.sequence()), sample.rows[sample.gold]
        tokens[number, : len(sequence)] = sequence
        labels[number, len(row.context) : len(sequence)] = sequence[len(row.context) :]
    tokens, labels = tokens.to(model.device), labels[:, 1:].to(model.device)
    # Padding stands on the right, where a causal model does not look, and has no label.
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    each = cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return each.sum(dim=1) / (labels != -100).sum(dim=1)

"""What tests of repairs share: weighted calibrations, and streams of plain forward passes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.engine.sources import Source, draw_held_out
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repairs import protocol
from lamina.repairs.protocol import Fit, Fitted
from tests.given import tiny
from tests.given.repairs import TEXT_LENGTHS

SOURCE_WEIGHTS = (1.0, 0.25)


def weighted_sources() -> list[Source]:
    """Two calibrations of 40 and 20 texts of different lengths, the second with less weight."""
    generator = torch.Generator().manual_seed(0)
    texts: list[list[int]] = []
    for length in 3 * TEXT_LENGTHS:
        tokens = torch.randint(4, tiny.VOCABULARY, (length,), generator=generator)
        texts.append(tokens.tolist())
    return [Source(texts[:40], SOURCE_WEIGHTS[0]), Source(texts[40:], SOURCE_WEIGHTS[1])]


class Text(NamedTuple):
    """A text of a source."""

    token_ids: Sequence[int]
    weight: float
    """Of each of its tokens."""
    is_heldout: bool


def texts_of(sources: Sequence[Source], is_heldout: bool | None = None) -> list[Text]:
    """The texts of all sources, or only those that are held out (or not)."""
    texts: list[Text] = []
    for source, flags in zip(sources, draw_held_out(sources, 0), strict=True):
        for token_ids, flag in zip(source.sequences, flags, strict=True):
            if is_heldout in (None, flag):
                texts.append(Text(token_ids, source.weight, flag))
    return texts


def streams_of(model: nn.Module, texts: Sequence[Text]) -> list[np.ndarray]:
    """h_0 … h_L of each text, (L + 1, tokens, C), by one forward pass each."""
    streams_by_text: list[np.ndarray] = []
    for text in texts:
        streams = tiny.stream(model, torch.tensor([text.token_ids]), layers_of(model))
        streams_by_text.append(torch.cat(streams).detach().double().numpy())
    return streams_by_text


def token_weights(texts: Sequence[Text]) -> np.ndarray:
    """The weight of each token of the texts, (tokens, 1)."""
    weights = [text.weight for text in texts]
    n_tokens = [len(text.token_ids) for text in texts]
    return np.repeat(weights, n_tokens)[:, None]


def ridge_regression(
    x: np.ndarray, y: np.ndarray, ridge: float, weights: np.ndarray | float = 1.0
) -> np.ndarray:
    """The operator W of least Σ w (x W - y)² + ridge · mean(w x²) |W|², by rows added to the data.

    The mean is over channels, of sums over tokens.
    """
    n_channels = x.shape[1]
    roots = np.sqrt(weights)
    penalty = np.sqrt(ridge * np.square(roots * x).sum() / n_channels)
    system = np.vstack([roots * x, penalty * np.eye(n_channels)])
    targets = np.vstack([roots * y, np.zeros((n_channels, y.shape[1]))])
    operator, *_ = np.linalg.lstsq(system, targets, rcond=None)
    return operator


def weighted_norm(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sqrt((weights * values**2).sum()))


def relative_distance(values: Any, expected: Any) -> float:
    """The norm of the difference over that of what is expected."""
    expected = np.asarray(expected, dtype=float)
    difference = np.asarray(values, dtype=float) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def fit_method(
    model: PreTrainedModel, options: Any, boundaries: Sequence[Boundary]
) -> dict[Boundary, Fit]:
    """Fit a repair method on the weighted sources."""
    method = protocol.load_method(options.method)
    collected = method.collect(model, weighted_sources(), boundaries, options, 0)
    return {boundary: method.fit(statistics, options) for boundary, statistics in collected}


def repaired_variant(
    model: PreTrainedModel, units: list[str], method: str, fits: dict[Boundary, Fit]
) -> PreTrainedModel:
    fitted = {boundary: Fitted(method, fit.tensors) for boundary, fit in fits.items()}
    return materialise(model, {"units": units}, fitted)

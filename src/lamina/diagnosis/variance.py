"""How fast the residual stream grows with depth, and how much each layer changes it (arXiv 2502.05795).

Under Pre-LN every layer reads a normalised stream and adds to the plain one, so updates of equal size make the variance
grow linearly, v0 + l. Where it grows exponentially, deep layers change little of their input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.configuration import Diagnosis
from lamina.config.entry import option
from lamina.data.splitting import documents

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel

    from lamina.data.calibrations import Sample
    from lamina.engine import taps


class Variance(Diagnosis):
    """The variance of the residual stream after each layer, over all tokens and again without the first ones.

    Massive activations live on the first tokens; the second set of rows shows the stream without them.
    """

    kind: Literal["variance"] = "variance"
    skip_first: int = option(
        "Tokens at the start of a sample that the second set of rows leaves out.", 1, ge=1
    )


def diagnose(
    model: PreTrainedModel, samples: Sequence[Sample], options: Variance, tokens: int
) -> list[dict[str, Any]]:
    """Rows of table `diagnoses` (layer, measure, value, interval over documents, n_samples).

    Each measure is over all tokens. With `_without_first` appended, it leaves out the first `skip_first` tokens of each
    sample, which carry massive activations:

    `variance` : Var of h_l over tokens and channels, at the boundaries l = 0 … L.
    `update_ratio` : mean over tokens of ‖h_{l+1} - h_l‖ / ‖h_l‖, of the layers l = 0 … L-1.
    `exponential_slope`, `exponential_r2` : of log Var against l, over l = 1 … L; layer null. Near r2 = 1 the variance
        grows by exp(slope) a layer.
    `power_slope`, `power_r2` : of log Var against log l, likewise; slope 1 is linear growth.
    """
    from lamina.engine import taps
    from lamina.models.structure import layers_of, text_config

    depth, sequences = len(layers_of(model)), [sample.sequence() for sample in samples]
    sums = _Sums(len(sequences), depth, int(text_config(model).hidden_size), options.skip_first)
    taps.run(model, sequences, range(depth + 1), sums.add, tokens)
    (copies,) = documents([sequences])
    return [
        row
        for part, suffix in enumerate(("", "_without_first"))
        for row in _rows(sums, part, suffix, copies)
    ]


class _Sums:
    """A consumer of all streams: sums over each sample's tokens, over all of them and without the first ones.

    `numbers` (2, samples) counts tokens; `total` and `squares` (2, samples, L+1) are sums over tokens and channels,
    `ratio` (2, samples, L) over tokens.
    """

    def __init__(self, samples: int, depth: int, channels: int, skip_first: int) -> None:
        import numpy as np

        self.skip_first, self.channels = skip_first, channels
        self.numbers = np.zeros((2, samples))
        self.total, self.squares = (
            np.zeros((2, samples, depth + 1)),
            np.zeros((2, samples, depth + 1)),
        )
        self.ratio = np.zeros((2, samples, depth))

    def add(self, batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Add a batch, one line and boundary at a time, because float64 streams are large. It waits for a GPU twice."""
        import torch

        lengths, line_sums = batch.real.sum(-1).tolist(), []
        for line, length in enumerate(lengths):
            before: Any = None
            for _, stream in sorted(streams.items()):
                now = stream[line, :length].double()
                tokens = [now.sum(-1), now.square().sum(-1), torch.zeros_like(now[:, 0])]
                if before is not None:
                    norm = before.norm(dim=-1).clamp_min(torch.finfo(now.dtype).tiny)
                    tokens[2] = (now - before).norm(dim=-1) / norm
                per_token = torch.stack(tokens)
                line_sums.append(
                    torch.stack([per_token.sum(-1), per_token[:, self.skip_first :].sum(-1)])
                )
                before = now
        sums = (
            torch.stack(line_sums)
            .cpu()
            .numpy()
            .reshape(len(lengths), len(streams), 2, 3)
            .transpose(3, 2, 0, 1)
        )
        self.numbers[:, batch.samples] = (
            lengths,
            [max(0, length - self.skip_first) for length in lengths],
        )
        self.total[:, batch.samples], self.squares[:, batch.samples] = sums[0], sums[1]
        self.ratio[:, batch.samples] = sums[2, :, :, 1:]


def _rows(sums: _Sums, part: int, suffix: str, copies: Sequence[int]) -> list[dict[str, Any]]:
    import numpy as np

    from lamina.relevance.statistics import document_weights, interval_rows

    kept = sums.numbers[part] > 0
    samples = int(kept.sum())
    if not samples:
        return []
    _, drawn = np.unique(np.asarray(copies)[kept], return_inverse=True)
    weights = document_weights(drawn, seed=0)
    number = (weights @ sums.numbers[part][kept])[:, None]
    total, squares, ratio = (
        weights @ values[part][kept] for values in (sums.total, sums.squares, sums.ratio)
    )
    mean = total / (number * sums.channels)
    variance = squares / (number * sums.channels) - mean**2
    layers, documents = np.arange(1, variance.shape[1]), 1 + int(drawn.max())
    grown = np.log(np.maximum(variance[:, 1:], np.finfo(float).tiny))
    rows = [
        {"layer": layer, "measure": measure + suffix, **row}
        for measure, draws in (("variance", variance), ("update_ratio", ratio / number))
        for layer, row in enumerate(interval_rows(draws, documents, samples))
    ]
    for name, x in (("exponential", layers), ("power", np.log(layers))):
        fitted = interval_rows(np.stack(_line(x, grown), 1), documents, samples)
        pairs = zip(("slope", "r2"), fitted, strict=True)
        rows += [{"measure": f"{name}_{what}{suffix}", **row} for what, row in pairs]
    return rows


def _line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and R² of least-squares lines through the points (x, y of a row of `y`); R² is 1 where y is constant."""
    import numpy as np

    x, y = x - x.mean(), y - y.mean(axis=1, keepdims=True)
    slope = y @ x / max(float(x @ x), np.finfo(float).tiny)
    left, whole = ((y - slope[:, None] * x) ** 2).sum(axis=1), (y**2).sum(axis=1)
    return slope, 1 - left / np.maximum(whole, np.finfo(float).tiny)

"""How fast the residual stream grows, and how much each layer changes it [arXiv 2502.05795].

Under Pre-LN, every layer reads the normalised stream and adds to the plain one. So updates of equal
size make the variance grow linearly with depth, v0 + l. Where it grows exponentially, deep layers
change their input little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from lamina.data.splitting import index_documents
from lamina.diagnosis.rows import DiagnosisRow, make_row
from lamina.options.diagnoses import Diagnosis
from lamina.options.entry import option

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel

    from lamina.data.calibrations import Sample
    from lamina.engine.taps import Batch


class Variance(Diagnosis):
    """The variance of the residual stream after each layer.

    It is taken over all tokens, and again without the first ones.

    Massive activations live on the first tokens; the second set of rows shows the stream without
    them.
    """

    kind: Literal["variance"] = "variance"
    skip_first: int = option(
        "Tokens at the start of a sample that the second set of rows leaves out.", 1, ge=1
    )


SUFFIXES = ("", "_without_first")  # of the measures over all tokens, and over those after the first


def diagnose(
    model: PreTrainedModel, samples: Sequence[Sample], options: Variance, token_budget: int
) -> list[DiagnosisRow]:
    """Rows of the whole model and of its layers, with intervals over documents.

    Each measure is over all tokens. With `_without_first` appended, it leaves out the first
    `skip_first` tokens of each sample, which carry massive activations:

    `variance` : Var of h_l over tokens and channels, at the boundaries l = 0 … L.
    `update_ratio` : mean over tokens of ‖h_{l+1} - h_l‖ / ‖h_l‖, of the layers l = 0 … L-1.
    `exponential_slope`, `exponential_r2` : of log Var against l, over l = 1 … L; layer null. Near
        r2 = 1 the variance grows by a factor of exp(slope) per layer.
    `power_slope`, `power_r2` : of log Var against log l, likewise; slope 1 is linear growth.
    """
    from lamina.engine import taps
    from lamina.models.structure import layers_of, text_config

    n_layers = len(layers_of(model))
    hidden_size = int(text_config(model).hidden_size)
    sequences = [sample.sequence() for sample in samples]
    sums = StreamSums(len(sequences), n_layers, hidden_size, options.skip_first)
    taps.run_sequences(model, sequences, range(n_layers + 1), sums.add_batch, token_budget)

    (document_indices,) = index_documents([sequences])
    rows = []
    for scope, suffix in enumerate(SUFFIXES):
        rows += _summarise(sums, scope, suffix, document_indices)
    return rows


class StreamSums:
    """Sums over the tokens of each sample: over all of them, and without the first ones.

    `n_tokens` (2, samples); `totals` and `squares` (2, samples, L+1), of the stream over tokens and
    channels; `update_ratios` (2, samples, L), over tokens.
    """

    def __init__(self, n_samples: int, n_layers: int, hidden_size: int, skip_first: int) -> None:
        import numpy as np

        self.hidden_size = hidden_size
        self.skip_first = skip_first
        self.n_tokens = np.zeros((2, n_samples))
        self.totals = np.zeros((2, n_samples, n_layers + 1))
        self.squares = np.zeros((2, n_samples, n_layers + 1))
        self.update_ratios = np.zeros((2, n_samples, n_layers))

    def add_batch(self, batch: Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Add a batch, given the streams at all boundaries.

        Each batch synchronises with the GPU twice: for all lengths, and for all sums.
        """
        import torch

        lengths = batch.real.sum(-1).tolist()
        ordered_streams = [stream for _, stream in sorted(streams.items())]
        line_sums = [
            self._sum_line(ordered_streams, line, length) for line, length in enumerate(lengths)
        ]
        # (3, scopes, lines, boundaries)
        totals, squares, ratios = torch.stack(line_sums).cpu().numpy().transpose(3, 2, 0, 1)

        self.n_tokens[0, batch.samples] = lengths
        self.n_tokens[1, batch.samples] = [max(0, length - self.skip_first) for length in lengths]
        self.totals[:, batch.samples] = totals
        self.squares[:, batch.samples] = squares
        self.update_ratios[:, batch.samples] = ratios[:, :, 1:]

    def _sum_line(self, streams: Sequence[torch.Tensor], line: int, length: int) -> torch.Tensor:
        """The sums of one line of a batch, (boundaries, 2 scopes, 3).

        They are the sums of the stream, of its square, and of the ratio of the preceding update.

        Boundaries are summed one at a time, because streams in float64 are large.
        """
        import torch

        boundary_sums = []
        previous: torch.Tensor | None = None
        for stream in streams:
            current = stream[line, :length].double()
            update_ratio = torch.zeros_like(current[:, 0])
            if previous is not None:
                norm = previous.norm(dim=-1).clamp_min(torch.finfo(current.dtype).tiny)
                update_ratio = (current - previous).norm(dim=-1) / norm
            token_sums = torch.stack([current.sum(-1), current.square().sum(-1), update_ratio])
            later_token_sums = token_sums[:, self.skip_first :]
            boundary_sums.append(torch.stack([token_sums.sum(-1), later_token_sums.sum(-1)]))
            previous = current
        return torch.stack(boundary_sums)


def _summarise(
    sums: StreamSums, scope: int, suffix: str, document_indices: Sequence[int]
) -> list[DiagnosisRow]:
    """The rows of one scope, by bootstrap over documents; none if no sample is long enough."""
    import numpy as np

    from lamina.relevance.statistics import document_weights, interval_rows

    has_tokens = sums.n_tokens[scope] > 0
    n_samples = int(has_tokens.sum())
    if not n_samples:
        return []
    _, kept_documents = np.unique(np.asarray(document_indices)[has_tokens], return_inverse=True)
    n_documents = 1 + int(kept_documents.max())
    document_draws = document_weights(kept_documents, seed=0)  # (1 + draws, samples)

    n_tokens = (document_draws @ sums.n_tokens[scope][has_tokens])[:, None]
    n_values = n_tokens * sums.hidden_size
    mean = document_draws @ sums.totals[scope][has_tokens] / n_values
    variance = document_draws @ sums.squares[scope][has_tokens] / n_values - mean**2
    update_ratio = document_draws @ sums.update_ratios[scope][has_tokens] / n_tokens

    diagnosis_rows = []
    for measure, draws in (("variance", variance), ("update_ratio", update_ratio)):
        for layer, estimate in enumerate(interval_rows(draws, n_documents, n_samples)):
            diagnosis_rows.append(make_row(measure + suffix, estimate, layer))

    layer_indices = np.arange(1, variance.shape[1])
    log_variance = np.log(np.maximum(variance[:, 1:], np.finfo(float).tiny))
    for growth, x in (("exponential", layer_indices), ("power", np.log(layer_indices))):
        slope_draws, r2_draws = fit_line(x, log_variance)
        draws = np.stack([slope_draws, r2_draws], 1)
        slope_estimate, r2_estimate = interval_rows(draws, n_documents, n_samples)
        diagnosis_rows.append(make_row(f"{growth}_slope{suffix}", slope_estimate))
        diagnosis_rows.append(make_row(f"{growth}_r2{suffix}", r2_estimate))
    return diagnosis_rows


def fit_line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and R², (lines,) each, of least-squares lines.

    A line fits the points x (points,) and a row of y (lines, points).

    R² is 1 where y is constant.
    """
    import numpy as np

    tiny = np.finfo(float).tiny
    x = x - x.mean()
    y = y - y.mean(axis=1, keepdims=True)
    slope = y @ x / max(float(x @ x), tiny)
    residual_squares = ((y - slope[:, None] * x) ** 2).sum(axis=1)
    total_squares = (y**2).sum(axis=1)
    return slope, 1 - residual_squares / np.maximum(total_squares, tiny)

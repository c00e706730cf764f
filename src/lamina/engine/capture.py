"""Distances between the residual streams at all layer boundaries, for table `activations`.

Only sums over tokens are kept; no activation outlives its batch.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.engine import taps
from lamina.engine.batches import TOKENS, pad_sequences
from lamina.errors import LaminaError
from lamina.models import check
from lamina.models.structure import layers_of, text_config

CHUNK_NUMBERS = 1 << 21  # stream values converted to float32 at a time: 8 MiB
PADDING_FINDING = "run beside a longer text"  # its key in the file of a model's check
TINY = torch.finfo(torch.float64).tiny


class ActivationRow(TypedDict):
    """A row of table `activations` without its keys: one boundary (span 0), or a pair of them.

    Standard errors are over samples.
    """

    layer: int  # the boundary that enters this layer
    span: int  # layers up to the second boundary
    n_samples: int
    n_tokens: int
    norm: NotRequired[float]  # mean over tokens; span 0 only, like the next one
    channel_magnitude: NotRequired[list[float]]  # mean of each channel
    cosine: NotRequired[float]  # 1 - cos, mean over tokens, then samples
    cosine_stderr: NotRequired[float | None]
    angular_last: NotRequired[float]  # angle at the last token over π [arXiv 2403.17887, eq. 6-7]
    angular_last_stderr: NotRequired[float | None]
    l2_relative: NotRequired[float]  # |h_{l+n} - h_l| / |h_l|


def capture_similarities(
    model: PreTrainedModel, sequences: Sequence[tuple[int, ...]], token_budget: int = TOKENS
) -> list[ActivationRow]:
    """Rows of table `activations`, one per boundary and one per pair of boundaries.

    token_budget: The budget of a pass.

    Raises LaminaError if the streams are not finite, if the model is not causal, if its layers
    cannot be cut, or if its numbers depend on the other sequences of a batch.
    """
    short_sequence = check.shorten_sequence(sequences)
    longest_sequence = max(sequences, key=len)
    check.check_model(model, short_sequence, longest_sequence)
    check_padding(model, short_sequence, longest_sequence)

    n_boundaries = len(layers_of(model)) + 1
    hidden_size = int(text_config(model).hidden_size)
    distances = BoundaryDistances(len(sequences), n_boundaries, hidden_size, model.device)
    taps.run_sequences(model, sequences, range(n_boundaries), distances.add_batch, token_budget)
    if not np.isfinite(distances.cosine).all():
        raise LaminaError(
            f"{type(model).__name__} ({model.config.name_or_path}) yields activations that are not "
            "finite on this calibration. Write `dtype: float32` or `dtype: bfloat16` in its entry "
            "under `models`."
        )
    return distances.rows(n_tokens=sum(map(len, sequences)))


@torch.inference_mode()
def check_padding(
    model: PreTrainedModel, token_ids: Sequence[int], longest_ids: Sequence[int]
) -> None:
    """Refuse a model whose logits of a text change in a batch with a longer one.

    Some rotary embeddings depend on the longest text of a batch.

    Raises LaminaError, which says how far the logits move.
    """
    is_padded = len(token_ids) != len(longest_ids)
    if not is_padded or check.read_finding(model, PADDING_FINDING, len(longest_ids)):
        return

    batch_ids, is_real = pad_sequences([longest_ids, token_ids], model.device)
    n_compared = check.compared_positions(model, token_ids)
    compared_slice = slice(len(token_ids) - n_compared, len(token_ids))
    shallow = check.shallow_model(model)
    with check.score_only(shallow, compared_slice):
        output = shallow(input_ids=batch_ids, attention_mask=is_real.long(), use_cache=False)
        logits_in_batch = output.logits[1, -n_compared:].clone()
    logits_alone = check.last_logits(shallow, token_ids, n_compared)
    distance = check.logit_distance(logits_in_batch, logits_alone, model.dtype)
    if distance > check.dtype_tolerance(model):
        raise LaminaError(
            f"the model family '{text_config(model).model_type}' gives a text different logits in "
            f"a batch with a text of {len(longest_ids)} tokens than alone (by {distance:.2g} of "
            "their spread), so its activations would depend on the other texts of a batch. "
            "Calibrate on texts of one length, or on shorter ones."
        )
    check.store_finding(model, PADDING_FINDING, True, len(longest_ids))


class BoundaryDistances:
    """A consumer of all streams, which compares every pair of boundaries.

    Means over each sample's tokens, in float64. `cosine` (1 - cos), `angle` (of the last token,
    over π) and `relative` (change) are (samples, L+1, L+1), `norm` is (samples, L+1), and
    `magnitude` (L+1, C) is a sum over samples.
    """

    def __init__(
        self, n_samples: int, n_boundaries: int, n_channels: int, device: torch.device
    ) -> None:
        self.cosine = np.zeros((n_samples, n_boundaries, n_boundaries))
        self.angle = np.zeros((n_samples, n_boundaries, n_boundaries))
        self.relative = np.zeros((n_samples, n_boundaries, n_boundaries))
        self.norm = np.zeros((n_samples, n_boundaries))
        self.magnitude = torch.zeros(n_boundaries, n_channels, dtype=torch.float64, device=device)

    def add_batch(self, batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Add a batch, a chunk of tokens at a time.

        The products of whole streams would not fit into memory.
        """
        batch_sums = _BatchSums(batch.real, *self.magnitude.shape)
        chunk_tokens = max(1, CHUNK_NUMBERS // (len(streams) * self.magnitude.shape[1]))
        line_indices, token_indices = batch.real.nonzero(as_tuple=True)
        chunks = zip(
            line_indices.split(chunk_tokens), token_indices.split(chunk_tokens), strict=True
        )
        for line_chunk, token_chunk in chunks:
            vectors = [stream[line_chunk, token_chunk].float() for stream in streams.values()]
            batch_sums.add_tokens(torch.stack(vectors, dim=1), line_chunk, token_chunk)

        pair_sums = (
            torch.stack([batch_sums.cosine, batch_sums.relative, batch_sums.angle]).cpu().numpy()
        )
        self.magnitude += batch_sums.magnitude
        self.cosine[batch.samples] = pair_sums[0]
        self.relative[batch.samples] = pair_sums[1]
        self.angle[batch.samples] = pair_sums[2]
        self.norm[batch.samples] = batch_sums.norm.cpu()

    def rows(self, n_tokens: int) -> list[ActivationRow]:
        """Rows of table `activations` over all samples, which have `n_tokens` tokens in total."""
        n_samples, n_boundaries = self.norm.shape
        rows: list[ActivationRow] = []
        for layer in range(n_boundaries):
            channel_means = (self.magnitude[layer] / n_samples).float()
            rows.append(
                {
                    "layer": layer,
                    "span": 0,
                    "norm": self.norm[:, layer].mean(),
                    "channel_magnitude": channel_means.tolist(),
                    "n_samples": n_samples,
                    "n_tokens": n_tokens,
                }
            )
            for later_layer in range(layer + 1, n_boundaries):
                cosine = self.cosine[:, layer, later_layer]
                angle = self.angle[:, layer, later_layer]
                rows.append(
                    {
                        "layer": layer,
                        "span": later_layer - layer,
                        "cosine": cosine.mean(),
                        "cosine_stderr": _standard_error(cosine),
                        "angular_last": angle.mean(),
                        "angular_last_stderr": _standard_error(angle),
                        "l2_relative": self.relative[:, layer, later_layer].mean(),
                        "n_samples": n_samples,
                        "n_tokens": n_tokens,
                    }
                )
        return rows


class _BatchSums:
    """Sums over the tokens of one batch, on its device, in float64.

    is_real: Where a token is not padding, (lines, T).
    """

    def __init__(self, is_real: torch.Tensor, n_boundaries: int, n_channels: int) -> None:
        n_lines = len(is_real)
        device = is_real.device
        pair_shape = (n_lines, n_boundaries, n_boundaries)
        self.last_token = is_real.sum(-1) - 1  # its index in each line, (lines,)
        self.line_numbers = torch.arange(n_lines, device=device)
        self.cosine = torch.zeros(pair_shape, dtype=torch.float64, device=device)
        self.relative = torch.zeros(pair_shape, dtype=torch.float64, device=device)
        self.angle = torch.zeros(pair_shape, dtype=torch.float64, device=device)
        self.norm = torch.zeros(pair_shape[:2], dtype=torch.float64, device=device)
        self.magnitude = torch.zeros(n_boundaries, n_channels, dtype=torch.float64, device=device)

    def add_tokens(
        self, vectors: torch.Tensor, line_numbers: torch.Tensor, token_indices: torch.Tensor
    ) -> None:
        """Add tokens at all boundaries.

        vectors: (tokens, L+1, C) in float32.
        line_numbers, token_indices: The line of each token, and its index there.
        """
        pairs = _compare_boundaries(vectors)
        # Weights of 1 / length turn the sums of a line into means over its tokens.
        token_weights = (1 / (self.last_token + 1))[line_numbers].double()
        line_weights = token_weights * (line_numbers == self.line_numbers[:, None])
        self.cosine += torch.einsum("bn,nlm->blm", line_weights, 1 - pairs.similarity)
        self.relative += torch.einsum("bn,nlm->blm", line_weights, pairs.relative_change)
        self.norm += line_weights @ pairs.norms
        self.magnitude += torch.einsum("n,nlc->lc", token_weights, vectors.abs().double())

        is_last = (token_indices == self.last_token[line_numbers])[:, None, None]
        last_angle = torch.where(is_last, pairs.similarity.arccos() / torch.pi, 0)
        self.angle.index_add_(0, line_numbers, last_angle)


class _PairDistances(NamedTuple):
    """How the stream of each token differs between any two boundaries, in float64."""

    similarity: torch.Tensor  # cosine, (tokens, L+1, L+1)
    relative_change: torch.Tensor  # |h_m - h_l| / |h_l| at [:, l, m]
    norms: torch.Tensor  # (tokens, L+1)


def _compare_boundaries(vectors: torch.Tensor) -> _PairDistances:
    """Compare the streams of tokens (tokens, L+1, C) at all pairs of boundaries."""
    products = (vectors @ vectors.mT).double()
    norms = products.diagonal(dim1=-2, dim2=-1).sqrt()
    norm_products = norms[:, :, None] * norms[:, None, :]
    similarity = (products / norm_products.clamp_min(TINY)).clamp(-1, 1)

    # |h_m - h_l|² = |h_m|² + |h_l|² - 2 h_m·h_l
    squared_change = norms[:, None, :] ** 2 + norms[:, :, None] ** 2 - 2 * products
    change = squared_change.clamp_min(0).sqrt()
    return _PairDistances(similarity, change / norms[:, :, None].clamp_min(TINY), norms)


def _standard_error(values: np.ndarray) -> float | None:
    """The standard error of a mean over samples; None for a single sample."""
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / np.sqrt(len(values)))

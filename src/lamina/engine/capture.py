"""The distance between the residual streams at any two layer boundaries; no activation outlives its batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.engine import taps
from lamina.engine.batches import TOKENS, padded
from lamina.errors import LaminaError
from lamina.models import check
from lamina.models.structure import layers_of, text_config

# Numbers of the streams that are converted to float32 at a time: 8 MiB.
_CHUNK = 1 << 21
_BESIDE = "run beside a longer text"  # the name of a finding


def capture(
    model: PreTrainedModel, sequences: Sequence[tuple[int, ...]], tokens: int = TOKENS
) -> list[dict[str, Any]]:
    """Rows of table `activations` (without its keys), one per boundary and span.

    Span 0 carries what belongs to one boundary: the mean norm of a token and each channel's mean magnitude. For span n:
    1 - cos between boundary l and l + n, mean over tokens, then samples; the angle at the last token over π
    [arXiv 2403.17887, eq. 6-7]; the relative change |h_{l+n} - h_l| / |h_l|. Standard errors are over samples.

    Raises LaminaError if the streams are not numbers, or the model is not a causal one whose layers can be cut, or its
    numbers depend on what runs beside a sequence.
    """
    short, longest = check.short(sequences), max(sequences, key=len)
    check.check(model, short, longest)
    check_beside(model, short, longest)
    count = len(layers_of(model)) + 1
    similarities = _Similarities(
        len(sequences), count, int(text_config(model).hidden_size), model.device
    )
    taps.run(model, sequences, range(count), similarities.add, tokens)
    if not np.isfinite(similarities.cosine).all():
        raise LaminaError(
            f"{type(model).__name__} ({model.config.name_or_path}) yields activations that are not numbers on this "
            "calibration. Try `dtype: float32` or `bfloat16` under its models entry."
        )
    facts = {"n_samples": len(sequences), "n_tokens": sum(map(len, sequences))}
    rows: list[dict[str, Any]] = []
    for layer in range(count):
        channels = (similarities.magnitude[layer] / len(sequences)).float().tolist()
        norm = similarities.norm[:, layer].mean()
        rows.append(
            {"layer": layer, "span": 0, "norm": norm, "channel_magnitude": channels, **facts}
        )
        for other in range(layer + 1, count):
            pair = (slice(None), layer, other)
            rows.append(
                {
                    "layer": layer,
                    "span": other - layer,
                    "cosine": similarities.cosine[pair].mean(),
                    "cosine_stderr": _stderr(similarities.cosine[pair]),
                    "angular_last": similarities.angle[pair].mean(),
                    "angular_last_stderr": _stderr(similarities.angle[pair]),
                    "l2_relative": similarities.relative[pair].mean(),
                    **facts,
                }
            )
    return rows


@torch.inference_mode()
def check_beside(model: PreTrainedModel, ids: Sequence[int], longest: Sequence[int]) -> None:
    """Refuse a model whose logits of a text change beside a longer one, as with some rotations of positions."""
    if len(ids) == len(longest) or check.finding(model, _BESIDE, len(longest)):
        return
    rows, real = padded([longest, ids], model.device)
    last = check.places(model, ids)
    with check.scored(model, slice(len(ids) - last, len(ids))):
        logits = (
            model(input_ids=rows, attention_mask=real.long(), use_cache=False)
            .logits[1, -last:]
            .clone()
        )
    far = check.distance(logits, check.logits(model, ids, last), model.dtype)
    if far > check.tolerance(model):
        raise LaminaError(
            f"the model family '{text_config(model).model_type}' gives a text other logits beside one of "
            f"{len(longest)} tokens than alone (by {far:.2g} of their spread), so its activations would depend on what "
            "runs beside them. Calibrate on texts of one length, or on shorter ones."
        )
    check.note(model, _BESIDE, True, len(longest))


class _Similarities:
    """A consumer of all streams: means over each sample's tokens, for every pair of boundaries.

    `cosine` (1 - cos), `angle` and `relative` are (samples, L+1, L+1), `norm` (samples, L+1), `magnitude` (L+1, C)
    summed over samples; all in float64.
    """

    def __init__(self, samples: int, count: int, channels: int, on: torch.device) -> None:
        shape = (samples, count, count)
        self.cosine, self.angle, self.relative = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.norm = np.zeros((samples, count))
        self.magnitude = torch.zeros(count, channels, dtype=torch.float64, device=on)

    def add(self, batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Sum up chunks of tokens on the device, so that memory never holds the products of whole streams."""
        line, place = batch.real.nonzero(as_tuple=True)
        size = max(1, _CHUNK // (len(streams) * self.magnitude.shape[1]))
        shape, on = (len(batch.samples), len(streams), len(streams)), batch.real.device
        cosine, relative, angle = torch.zeros(3, *shape, dtype=torch.float64, device=on)
        magnitude = torch.zeros_like(self.magnitude)
        norm, ends = torch.zeros(shape[:2], dtype=torch.float64, device=on), batch.real.sum(-1) - 1
        for lines, places in zip(line.split(size), place.split(size), strict=True):
            tokens = torch.stack(
                [stream[lines, places].float() for stream in streams.values()], dim=1
            )
            products = (tokens @ tokens.mT).double()
            lengths = products.diagonal(dim1=-2, dim2=-1).sqrt()
            tiny = torch.finfo(torch.float64).tiny
            similarity = (
                products / (lengths[:, :, None] * lengths[:, None, :]).clamp_min(tiny)
            ).clamp(-1, 1)
            squared = (
                lengths[:, None, :] ** 2 + lengths[:, :, None] ** 2 - 2 * products
            ).clamp_min(0)
            change = squared.sqrt() / lengths[:, :, None].clamp_min(tiny)
            weight = (1 / (ends + 1))[lines].double()
            share = weight * (lines == torch.arange(len(batch.samples), device=on)[:, None])
            cosine += torch.einsum("bn,nlm->blm", share, 1 - similarity)
            relative += torch.einsum("bn,nlm->blm", share, change)
            norm += share @ lengths
            magnitude += torch.einsum("n,nlc->lc", weight, tokens.abs().double())
            last = (places == ends[lines])[:, None, None]
            angle.index_add_(0, lines, torch.where(last, similarity.arccos() / torch.pi, 0))
        sums = torch.stack([cosine, relative, angle]).cpu().numpy()
        self.magnitude += magnitude
        self.cosine[batch.samples], self.relative[batch.samples], self.angle[batch.samples] = sums
        self.norm[batch.samples] = norm.cpu()


def _stderr(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None

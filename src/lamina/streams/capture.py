"""How far apart the residual streams at any two layer boundaries are, streamed: no activation is kept.

Boundary l is the stream entering layer l; boundary L leaves the last layer, before the final norm.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.structure import layers_of


@contextmanager
def boundaries(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Collect h_0 … h_L of each forward pass, (lines, T, C) each, in a list that is cleared at h_0."""
    layers = layers_of(model)
    seen: list[torch.Tensor] = []

    def entering(number: int) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if number == 0:
                seen.clear()
            seen.append(args[0] if args else kwargs["hidden_states"])

        return hook

    def leaving(module: torch.nn.Module, args: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_pre_hook(entering(i), with_kwargs=True) for i, layer in enumerate(layers)]
    handles.append(layers[len(layers) - 1].register_forward_hook(leaving))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def padded_batches(
    sequences: Sequence[tuple[int, ...]], tokens: int, device: torch.device
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Sequences of similar length, padded on the right: their numbers, ids and real-token mask, (lines, T) each."""
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
    while order:
        size = max(1, tokens // len(sequences[order[0]]))
        chosen, order = order[:size], order[size:]
        length = len(sequences[chosen[0]])
        ids = torch.tensor([[*sequences[i], *[0] * (length - len(sequences[i]))] for i in chosen], device=device)
        lengths = torch.tensor([len(sequences[i]) for i in chosen], device=device)
        yield chosen, ids, torch.arange(length, device=device)[None] < lengths[:, None]


@torch.inference_mode()
def capture(model: PreTrainedModel, sequences: Sequence[tuple[int, ...]], tokens: int = 16384) -> list[dict[str, Any]]:
    """Rows of table `activations` (without its keys), one per boundary and span.

    Span 0 carries what belongs to one boundary: the mean norm of a token and each channel's mean magnitude. For span n:
    1 - cos between boundary l and l + n, mean over tokens, then samples; the angle at the last token over π
    [arXiv 2403.17887, eq. 6-7]; the relative change |h_{l+n} - h_l| / |h_l|. Standard errors are over samples.

    Raises
    ------
    LaminaError
        If the streams are not numbers.
    """
    count = len(layers_of(model)) + 1
    shape = (len(sequences), count, count)
    cosine, angle, relative = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    norm = np.zeros((len(sequences), count))
    magnitude = torch.zeros(count, model.config.get_text_config().hidden_size, dtype=torch.float64)
    with boundaries(model) as seen:
        for chosen, ids, real in padded_batches(sequences, tokens, model.device):
            # The body alone: the output embedding says nothing about streams.
            model.base_model(input_ids=ids, attention_mask=real.long(), use_cache=False)
            streams = torch.stack([h.float() for h in seen])
            weight = (real / real.sum(-1, keepdim=True)).double()
            products = torch.einsum("lbtc,mbtc->btlm", streams, streams).double()
            lengths = products.diagonal(dim1=-2, dim2=-1).sqrt()
            scale = lengths[..., :, None] * lengths[..., None, :]
            similarity = (products / scale.clamp_min(torch.finfo(torch.float64).tiny)).clamp(-1, 1)
            squared = (lengths[..., None, :] ** 2 + lengths[..., :, None] ** 2 - 2 * products).clamp_min(0)
            change = squared.sqrt() / lengths[..., :, None].clamp_min(torch.finfo(torch.float64).tiny)
            last = similarity[torch.arange(len(chosen)), real.sum(-1) - 1]
            cosine[chosen] = torch.einsum("bt,btlm->blm", weight, 1 - similarity).cpu()
            relative[chosen] = torch.einsum("bt,btlm->blm", weight, change).cpu()
            angle[chosen] = (last.arccos() / torch.pi).cpu()
            norm[chosen] = torch.einsum("bt,btl->bl", weight, lengths).cpu()
            magnitude += torch.einsum("bt,lbtc->lc", weight, streams.abs().double()).cpu()
    if not np.isfinite(cosine).all():
        raise LaminaError(
            f"{type(model).__name__} ({model.config.name_or_path}) yields activations that are not numbers on this "
            "calibration. Try `dtype: float32` or `bfloat16` under its models entry."
        )
    facts = {"n_samples": len(sequences), "n_tokens": sum(map(len, sequences))}
    rows: list[dict[str, Any]] = []
    for layer in range(count):
        channels = (magnitude[layer] / len(sequences)).float().tolist()
        rows.append({"layer": layer, "span": 0, "norm": norm[:, layer].mean(), "channel_magnitude": channels, **facts})
        for other in range(layer + 1, count):
            pair = (slice(None), layer, other)
            rows.append(
                {
                    "layer": layer,
                    "span": other - layer,
                    "cosine": cosine[pair].mean(),
                    "cosine_stderr": _stderr(cosine[pair]),
                    "angular_last": angle[pair].mean(),
                    "angular_last_stderr": _stderr(angle[pair]),
                    "l2_relative": relative[pair].mean(),
                    **facts,
                }
            )
    return rows


def _stderr(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None

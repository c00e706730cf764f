"""Perplexity of documents, apart or joined, with a stated window, stride and BOS, and with an error bar."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.config.benchmarks import Perplexity
from lamina.data.calibrations import check_ids, encode
from lamina.engine.batches import by_length, halved, in_two, logit_positions, padded
from lamina.errors import LaminaError
from lamina.evaluation.measuring import Rows, Score
from lamina.evaluation.together import Together
from lamina.models import check
from lamina.models.boundary import assert_finite
from lamina.models.checkpoint import check_fits, context
from lamina.models.structure import text_config

BLOCKS = 30  # of windows of joined documents
_TOKENS = 8192  # positions per batch, padding included
_STAGE = "the evaluation of perplexity"


class Window(NamedTuple):
    """One model input: the tokens, the first scored position, and the number of its document or block."""

    tokens: tuple[int, ...]
    first: int
    document: int


Scores = list[tuple[float, int]]
"""Summed negative log-likelihood (nats) and number of scored tokens of each document."""


def joined_windows(
    documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, window: int, between: str
) -> list[Window]:
    """Cut one stream of all documents into windows of `window` tokens, as papers on pruning do [arXiv 2301.00774].

    Windows do not overlap, the first token of each has no context and is not scored, and what does not fill the last
    window is left out. So the mean over tokens is the mean over windows. Neighbouring windows are alike: 30 blocks of
    them take the place of documents in the error bar, or all windows if there are fewer.

    Raises LaminaError if the stream does not fill a window.
    """
    tokens = encode(tokenizer, between.join(documents))
    count = len(tokens) // window
    if not count:
        raise LaminaError(
            f"the joined documents have {len(tokens)} tokens. Write a window of at most {len(tokens)}."
        )
    blocks = min(BLOCKS, count)
    return [
        Window(tuple(tokens[number * window : (number + 1) * window]), 1, number * blocks // count)
        for number in range(count)
    ]


def windows(
    documents: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    window: int,
    stride: int | None = None,
) -> list[Window]:
    """Cut each document into windows of at most `window` tokens; documents are never joined.

    Windows start at multiples of `stride` (default `window`: no overlap). A window scores the tokens that no earlier
    window has scored. The tokenizer encodes a document by its defaults, so there is a BOS exactly if it adds one. The
    first token, BOS or not, has no context and is not scored. Without overlap, the first token of a later window is
    predicted from the token before it.

    Raises LaminaError if no document has a token to score.
    """
    stride, cut_out = stride or window, []
    for number, text in enumerate(documents):
        tokens = encode(tokenizer, text)
        scored = 1
        for start in range(0, len(tokens) - 1, stride):
            end = min(
                start + window + 1, len(tokens)
            )  # `window` inputs and `window` targets, one to the right
            cut_out.append(Window(tuple(tokens[start:end]), scored - start, number))
            scored = end
            if end == len(tokens):
                break
    if not cut_out:
        raise LaminaError(
            "no document of the perplexity has two tokens or more. Choose longer documents."
        )
    return cut_out


def benchmark(
    name: str, documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, options: Perplexity
) -> Score:
    """What scores a model on the documents of benchmark `name`."""
    if options.joined is None:
        cut, parts = windows(documents, tokenizer, options.window, options.stride), len(documents)
        version = f"window={options.window} stride={options.stride or options.window}"
    else:
        cut, parts = joined_windows(documents, tokenizer, options.window, options.joined), BLOCKS
        version = f"window={options.window} joined={options.joined!r}"

    def score(model: PreTrainedModel, title: str, together: Together) -> tuple[Rows, Rows]:
        vocabulary = text_config(model).vocab_size
        for each in cut:
            where = f"benchmarks.perplexity.{name}: document {each.document}"
            check_ids(tokenizer, each.tokens, vocabulary, where)
        scores = document_nll(model, cut, parts, title, together)
        rows = [
            row | {"task": name, "task_version": version} for row in metric_rows(scores, vocabulary)
        ]
        samples = [
            {"task": name, "sample": number, "metric": "nll", "value": nll / count}
            for number, (nll, count) in enumerate(scores)
            if count
        ]
        return rows, samples

    return score


def document_nll(
    model: PreTrainedModel,
    cut: Sequence[Window],
    count: int,
    name: str,
    together: Together | None = None,
) -> Scores:
    """Score the windows of `count` documents on `model`, called `name` in messages and in `together`.

    `together` holds the variants that are measured in one pass.

    Raises LaminaError if a window is longer than the model's context, or the model gives NaN.
    """
    longest = max(len(window.tokens) for window in cut) - 1
    check_fits("window", longest, context(model.config.to_dict()), name)
    rows = [(window.tokens[: window.first], window.tokens[window.first :]) for window in cut]
    shared = together and together.likelihoods(name, rows, _STAGE)
    sums = [-each.nats for each in shared] if shared else _losses(model, cut, name)
    scores = [(0.0, 0)] * count
    for window, total in zip(cut, sums, strict=True):
        nll, tokens = scores[window.document]
        scores[window.document] = nll + total, tokens + len(window.tokens) - window.first
    return scores


@torch.no_grad()
def _losses(model: PreTrainedModel, cut: Sequence[Window], name: str) -> list[float]:
    """Summed negative log-likelihood (nats) of the scored tokens of each window."""
    sums = [0.0] * len(cut)
    most = logit_positions(text_config(model).vocab_size)
    budget = min(_TOKENS, most)

    def measure(group: list[int]) -> None:
        batch = [cut[number] for number in group]
        inputs, mask = padded([window.tokens[:-1] for window in batch], model.device)
        targets, _ = padded([window.tokens[1:] for window in batch], model.device)
        first = torch.tensor([[window.first - 1] for window in batch], device=model.device)
        is_scored = mask & (torch.arange(mask.shape[1], device=model.device) >= first)
        totals = torch.zeros(len(group), dtype=torch.float64, device=model.device)
        # One window of a large vocabulary may have more logits than fit: then its layers run for each part of them.
        for part in torch.arange(mask.shape[1]).split(max(1, most // len(group))):
            places = slice(int(part[0]), int(part[-1]) + 1)
            with check.scored(model, places):
                logits = model(
                    input_ids=inputs, attention_mask=mask.long(), use_cache=False
                ).logits.float()
            if logits.shape[1] != len(part):
                logits = logits[:, places]
            losses = functional.cross_entropy(
                logits.flatten(0, 1), targets[:, places].flatten(), reduction="none"
            )
            losses = losses.unflatten(0, logits.shape[:2])
            totals += losses.where(is_scored[:, places], 0.0).double().sum(1)
        assert_finite(totals, name, _STAGE)
        for number, total in zip(group, totals.tolist(), strict=True):
            sums[number] = total

    for group in by_length([len(window.tokens) for window in cut], budget):
        halved(measure, group, in_two)
    return sums


def metric_rows(scores: Scores, vocabulary: int) -> list[dict[str, Any]]:
    """Rows of table `benchmarks`: perplexity, mean NLL per token (nats), and mean NLL / log V [arXiv 2403.17887].

    The mean is over tokens. Tokens of a document are not independent, so its standard error treats documents as
    clusters: for the ratio r = ΣN/Σn of document sums, var(r) = K/(K-1) Σ(N - r n)² / (Σn)²; the error of the
    perplexity is exp(r) times that of r.
    """
    kept = [(nll, count) for nll, count in scores if count]
    total, clusters = sum(count for _, count in kept), len(kept)
    mean = sum(nll for nll, _ in kept) / total
    stderr = None
    if clusters > 1:
        spread = sum((nll - mean * count) ** 2 for nll, count in kept)
        stderr = math.sqrt(clusters / (clusters - 1) * spread) / total
    perplexity = (
        math.exp(mean) if mean < 700 else math.inf
    )  # a destroyed model can exceed what exp() holds
    values = {
        "perplexity": (perplexity, perplexity),
        "nll": (mean, 1.0),
        "nll_per_log_vocabulary": (mean / math.log(vocabulary), 1 / math.log(vocabulary)),
    }
    counts = {"n_samples": clusters, "n_cut": 0, "n_shot": 0, "higher_is_better": False}
    return [
        {"metric": metric, "value": value, "stderr": None if stderr is None else stderr * factor}
        | counts
        for metric, (value, factor) in values.items()
    ]

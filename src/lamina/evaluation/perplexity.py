"""Measures the perplexity of documents, separate or joined, with a standard error."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data.calibrations import check_ids, encode_document
from lamina.engine.batches import by_length, in_two, logit_positions, pad_sequences, run_in_halves
from lamina.errors import LaminaError
from lamina.evaluation.measuring import Rows
from lamina.evaluation.together import Together
from lamina.models import check
from lamina.models.boundary import assert_finite
from lamina.models.checkpoint import check_fits, stated_context
from lamina.models.structure import text_config
from lamina.options.benchmarks import PerplexityEntry

BLOCKS = 30
"""Number of blocks of windows. They replace documents if these are joined."""

_BATCH_POSITIONS = 8192  # padding included
_LARGEST_EXPONENT = 700  # slightly below the limit of exp() in float64
_STAGE = "the evaluation of perplexity"


class Window(NamedTuple):
    """One model input."""

    tokens: tuple[int, ...]
    first: int
    """The first position that is scored."""
    document: int
    """The index of its document or block."""


Scores = list[tuple[float, int]]
"""Summed negative log-likelihood (nats) and number of scored tokens of each document."""


def joined_windows(
    documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, window: int, between: str
) -> list[Window]:
    """Cut one stream of all documents into windows, as papers on pruning do [arXiv 2301.00774].

    Windows of `window` tokens do not overlap. The first token of each has no context and is not
    scored, and an incomplete last window is left out. So the mean over tokens is the mean over
    windows. Neighbouring windows are correlated, so 30 blocks of them take the place of documents
    in the standard error, or all windows if there are fewer.

    Raises LaminaError if the stream does not fill a window.
    """
    token_ids = encode_document(tokenizer, between.join(documents))
    n_windows = len(token_ids) // window
    if not n_windows:
        raise LaminaError(
            f"the joined documents have {len(token_ids)} tokens. Write a window of at most "
            f"{len(token_ids)}."
        )
    n_blocks = min(BLOCKS, n_windows)
    cut_windows: list[Window] = []
    for index in range(n_windows):
        tokens = tuple(token_ids[index * window : (index + 1) * window])
        cut_windows.append(Window(tokens, first=1, document=index * n_blocks // n_windows))
    return cut_windows


def split_windows(
    documents: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    window: int,
    stride: int | None = None,
) -> list[Window]:
    """Cut each document into windows of at most `window` tokens; documents are never joined.

    Windows start at multiples of `stride` (default `window`: no overlap). A window scores the
    tokens that no earlier window has scored. The tokenizer encodes a document with its defaults, so
    there is a BOS only if it adds one. The first token, BOS or not, has no context and is not
    scored. Without overlap, the first token of a later window is predicted from the token before
    it.

    Raises LaminaError if no document has a token to score.
    """
    cut_windows: list[Window] = []
    for index, text in enumerate(documents):
        token_ids = encode_document(tokenizer, text)
        n_scored = 1
        for start in range(0, len(token_ids) - 1, stride or window):
            # `window` inputs and `window` targets, which are shifted by one.
            end = min(start + window + 1, len(token_ids))
            cut_windows.append(Window(tuple(token_ids[start:end]), n_scored - start, index))
            n_scored = end
            if end == len(token_ids):
                break
    if not cut_windows:
        raise LaminaError(
            "no document of the perplexity has two tokens or more. Choose longer documents."
        )
    return cut_windows


class PerplexityBenchmark:
    """The documents of one benchmark, cut into windows, ready to score variant after variant."""

    def __init__(
        self,
        name: str,
        documents: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        options: PerplexityEntry,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        if options.joined is None:
            self.windows = split_windows(documents, tokenizer, options.window, options.stride)
            self.n_documents = len(documents)
            stride = options.stride or options.window
            self.version = f"window={options.window} stride={stride}"
        else:
            self.windows = joined_windows(documents, tokenizer, options.window, options.joined)
            self.n_documents = BLOCKS
            self.version = f"window={options.window} joined={options.joined!r}"

    def score(self, model: PreTrainedModel, title: str, together: Together) -> tuple[Rows, Rows]:
        """Rows of `benchmarks` and of `benchmark_samples`; messages call the model `title`."""
        vocabulary = text_config(model).vocab_size
        for window in self.windows:
            location = f"benchmarks.perplexity.{self.name}: document {window.document}"
            check_ids(self.tokenizer, window.tokens, vocabulary, location)
        scores = document_nll(model, self.windows, self.n_documents, title, together)
        keys = {"task": self.name, "task_version": self.version}
        benchmark_rows = [row | keys for row in metric_rows(scores, vocabulary)]
        sample_rows = [
            {"task": self.name, "sample": index, "metric": "nll", "value": nll / n_tokens}
            for index, (nll, n_tokens) in enumerate(scores)
            if n_tokens
        ]
        return benchmark_rows, sample_rows


def document_nll(
    model: PreTrainedModel,
    cut: Sequence[Window],
    count: int,
    name: str,
    together: Together | None = None,
) -> Scores:
    """Score the windows `cut` of `count` documents on a model.

    name: What messages and `together` call the model.
    together: The variants that are measured in one pass.

    Raises LaminaError if a window is longer than the model's context, or the model gives NaN.
    """
    longest = max(len(window.tokens) for window in cut) - 1
    check_fits("window", longest, stated_context(model.config.to_dict()), name)
    rows = [(window.tokens[: window.first], window.tokens[window.first :]) for window in cut]
    likelihoods = together.likelihoods(name, rows, _STAGE) if together else None
    if likelihoods:
        window_losses = [-likelihood.nats for likelihood in likelihoods]
    else:
        window_losses = _WindowLosses(model, cut, name).measure()

    scores = [(0.0, 0)] * count
    for window, loss in zip(cut, window_losses, strict=True):
        nll, n_tokens = scores[window.document]
        n_scored = len(window.tokens) - window.first
        scores[window.document] = (nll + loss, n_tokens + n_scored)
    return scores


class _WindowLosses:
    """Summed negative log-likelihoods (nats) of the scored tokens of windows, on one model."""

    def __init__(self, model: PreTrainedModel, cut: Sequence[Window], name: str) -> None:
        self.model = model
        self.windows = cut
        self.name = name
        self.sums = [0.0] * len(cut)
        self.most_logits = logit_positions(text_config(model).vocab_size)

    def measure(self) -> list[float]:
        """The sum of each window."""
        lengths = [len(window.tokens) for window in self.windows]
        for batch in by_length(lengths, min(_BATCH_POSITIONS, self.most_logits)):
            run_in_halves(self._measure_batch, batch, in_two)
        return self.sums

    @torch.no_grad()
    def _measure_batch(self, indices: list[int]) -> None:
        """Measure the windows with these indices in one batch."""
        device = self.model.device
        batch = [self.windows[index] for index in indices]
        inputs, mask = pad_sequences([window.tokens[:-1] for window in batch], device)
        targets, _ = pad_sequences([window.tokens[1:] for window in batch], device)
        first_scored = torch.tensor([[window.first - 1] for window in batch], device=device)
        is_scored = mask & (torch.arange(mask.shape[1], device=device) >= first_scored)
        totals = torch.zeros(len(batch), dtype=torch.float64, device=device)
        # With a large vocabulary, one window may have more logits than fit into memory. Then the
        # layers run again for each part of its positions.
        positions_per_part = max(1, self.most_logits // len(batch))
        for part in torch.arange(mask.shape[1]).split(positions_per_part):
            positions = slice(int(part[0]), int(part[-1]) + 1)
            losses = self._position_losses(inputs, mask, targets, positions)
            totals += losses.where(is_scored[:, positions], 0.0).double().sum(1)
        assert_finite(totals, self.name, _STAGE)
        for index, total in zip(indices, totals.tolist(), strict=True):
            self.sums[index] = total

    def _position_losses(
        self, inputs: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor, positions: slice
    ) -> torch.Tensor:
        """Negative log-likelihoods of targets at some positions: (windows, positions), float32."""
        with check.score_only(self.model, positions):
            logits = self.model(
                input_ids=inputs, attention_mask=mask.long(), use_cache=False
            ).logits.float()
        if logits.shape[1] != positions.stop - positions.start:
            logits = logits[:, positions]
        losses = functional.cross_entropy(
            logits.flatten(0, 1), targets[:, positions].flatten(), reduction="none"
        )
        return losses.unflatten(0, logits.shape[:2])


def metric_rows(scores: Scores, vocabulary: int) -> list[dict[str, Any]]:
    """Rows of table `benchmarks`: perplexity, mean NLL per token (nats), and mean NLL / log V.

    The last one is defined in arXiv 2403.17887. The means are over tokens. Tokens of a document are
    not independent, so the standard error treats documents as clusters: for the ratio r = ΣN/Σn of
    document sums, var(r) = K/(K-1) Σ(N - r n)² / (Σn)²; the error of the perplexity is exp(r) times
    that of r.
    """
    scored = [(nll, n_tokens) for nll, n_tokens in scores if n_tokens]
    n_clusters = len(scored)
    total_tokens = sum(n_tokens for _, n_tokens in scored)
    mean_nll = sum(nll for nll, _ in scored) / total_tokens
    nll_stderr = None
    if n_clusters > 1:
        spread = sum((nll - mean_nll * n_tokens) ** 2 for nll, n_tokens in scored)
        nll_stderr = math.sqrt(n_clusters / (n_clusters - 1) * spread) / total_tokens

    # The loss of a broken model can overflow exp().
    perplexity = math.exp(mean_nll) if mean_nll < _LARGEST_EXPONENT else math.inf
    log_vocabulary = math.log(vocabulary)
    # The value of each metric, and the factor of its standard error.
    metrics = {
        "perplexity": (perplexity, perplexity),
        "nll": (mean_nll, 1.0),
        "nll_per_log_vocabulary": (mean_nll / log_vocabulary, 1 / log_vocabulary),
    }
    return [
        {
            "metric": metric,
            "value": value,
            "stderr": None if nll_stderr is None else nll_stderr * factor,
            "n_samples": n_clusters,
            "n_cut": 0,
            "n_undecided": 0,
            "n_shot": 0,
            "higher_is_better": False,
        }
        for metric, (value, factor) in metrics.items()
    ]

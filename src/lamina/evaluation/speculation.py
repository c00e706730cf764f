"""Plain and speculative decoding of one prompt: a draft proposes tokens, the base reads them in one pass and decides.
The text is that of the base alone: token by token if the likeliest one is taken, in distribution if tokens are drawn
[Leviathan et al., arXiv 2211.17192, alg. 1]. Probabilities are one-hot where the likeliest token is taken, so that both
follow one rule.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import torch
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

clock = time.perf_counter  # what seconds are counted by


@dataclass(frozen=True)
class Decoding:
    """How a text is written.

    Attributes
    ----------
    tokens : largest number of tokens written after a prompt.
    temperature : of the softmax that tokens are drawn from; None takes the likeliest.
    ends : tokens that end a text.
    draft : number of tokens that a draft proposes before the base reads them.
    """

    tokens: int
    temperature: float | None = None
    ends: frozenset[int] = frozenset()
    draft: int = 4


@dataclass(frozen=True)
class Written:
    """The tokens written after a prompt, and the seconds for the tokens after the first one.

    `rounds` is the number of passes of the base after its pass over the prompt. `proposed` is the number of tokens that
    these passes gave, including those after an end.
    """

    tokens: list[int]
    rounds: int
    proposed: int
    seconds: float


class Writer:
    """A model and its cache of the text that it has read."""

    def __init__(self, model: Any) -> None:
        # Without the configuration no layer forgets what is outside its window, so that tokens can be taken back.
        self.model = model
        self.cuts, self.cache, self.held = model._supports_logits_to_keep(), DynamicCache(), 0

    def read(self, text: Sequence[int], last: int) -> torch.Tensor:
        """Logits (last, V) behind each of the last tokens of a text. The tokens before them were read earlier."""
        ids = torch.tensor([text[self.held :]], device=self.model.device)
        few = {"logits_to_keep": last} if self.cuts else {}
        output = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, **few)
        self.held = len(text)
        return cast(torch.Tensor, output.logits[0, -last:])

    def keep(self, length: int) -> None:
        """Forget all but the first `length` tokens that were read."""
        if self.held > length:
            self.cache.crop(length - self.held)
            self.held = length


def shares(logits: torch.Tensor, temperature: float | None) -> torch.Tensor:
    """Probabilities (…, V) of the next token in float32; one-hot at the likeliest without a temperature."""
    if temperature is None:
        return functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits.float() / temperature).softmax(-1)


def drawn(weights: torch.Tensor, number: float) -> int:
    """The token whose part of the cumulative weights (V,) contains a number of [0, 1)."""
    sums = weights.double().cumsum(-1)
    return min(int(torch.searchsorted(sums, number * sums[-1], right=True)), len(weights) - 1)


def verify(
    base: torch.Tensor, draft: Sequence[torch.Tensor], proposed: Sequence[int], number: Callable[[], float]
) -> tuple[int, int]:
    """The number of proposed tokens that stay, and the base's own token behind them.

    A token drawn from q stays with chance min(1, p / q). A token drawn from max(p - q, 0) replaces the first one that
    does not stay. So each token has distribution p.

    Parameters
    ----------
    base : p (g + 1, V), behind the text and behind each proposed token.
    draft : q (V,) of each of the g proposed tokens.
    number : gives numbers of [0, 1).
    """
    for place, token in enumerate(proposed):
        p, q = base[place], draft[place]
        if number() * float(q[token]) >= float(p[token]):
            return place, drawn((p - q).clamp(min=0), number())
    return len(proposed), drawn(base[len(proposed)], number())


@torch.inference_mode()
def written(
    model: PreTrainedModel, prompt: Sequence[int], how: Decoding, seed: int, draft: PreTrainedModel | None = None
) -> Written:
    """The text that a model writes after a prompt, with a draft or alone; `seed` decides which tokens are drawn."""
    random, base = Random(seed), Writer(model)
    first = drawn(shares(base.read(prompt, 1)[0], how.temperature), random.random())
    helper = Writer(draft) if draft is not None else None
    text, rounds, start = [*prompt, first], 0, clock()
    fresh = {first}
    while len(text) < len(prompt) + how.tokens and not fresh & how.ends:
        known, guesses = len(text), []
        for _ in range(how.draft if helper else 0):
            guesses.append(shares(helper.read(text, 1)[0], how.temperature))  # type: ignore[union-attr]
            text.append(drawn(guesses[-1], random.random()))
        p = shares(base.read(text, len(guesses) + 1), how.temperature)
        kept, token = verify(p, guesses, text[known:], random.random)
        text = [*text[: known + kept], token]
        base.keep(len(text) - 1)
        if helper:
            helper.keep(len(text) - 1)
        fresh, rounds = set(text[known:]), rounds + 1
    seconds = clock() - start
    tokens = text[len(prompt) : len(prompt) + how.tokens]
    end = next((place for place, token in enumerate(tokens) if token in how.ends), len(tokens))
    return Written(tokens[: end + 1], rounds, len(text) - len(prompt) - 1, seconds)


@torch.inference_mode()
def overlap(
    model: PreTrainedModel, draft: PreTrainedModel, text: Sequence[int], prompt: int, temperature: float | None
) -> torch.Tensor:
    """The chance Σ_v min(p, q) that a token is accepted, for each token after the first `prompt`, (tokens - prompt,).

    The base wrote the text. Without a temperature the chance is 1 where the likeliest tokens agree, else 0.
    """
    ids = torch.tensor([text], device=model.device)
    p, q = (each(input_ids=ids, use_cache=False).logits[0, prompt - 1 : -1] for each in (model, draft))
    return torch.minimum(shares(p, temperature), shares(q, temperature)).sum(-1)

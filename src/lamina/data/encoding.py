"""lm-eval's encodings: how a context and what follows it become the tokens of a row."""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data.calibrations import Row, check_ids
from lamina.errors import LaminaError

Encoded = tuple[tuple[str, str], list[int], list[int]]
"""A context and a continuation: their texts, and the tokens of each."""


class EncodingLM(HFLM):
    """lm-eval's HFLM with messages for what it cannot encode, and for tokenizers that have neither BOS nor EOS.

    lm-eval asks for such a token before every question, though it needs one only where the question is empty.
    """

    _recorded: list[Encoded] | None = None  # what `encoded` collects

    @property
    def prefix_token_id(self) -> int:
        """BOS, else EOS: the token that stands for an empty question."""
        return self._required(
            super().prefix_token_id, "neither BOS nor EOS, which an empty question is put after"
        )

    @property
    def eot_token_id(self) -> int:
        """EOS, which ends a generated answer."""
        return self._required(super().eot_token_id, "no EOS, by which a generated answer ends")

    def _required(self, token: int | None, missing: str) -> int:
        if token is None:
            raise LaminaError(
                f"the tokenizer of {self.tokenizer.name_or_path} has {missing}. Name one in tokenizer_config.json "
                '(`"eos_token": "…"`, a token of its vocabulary), or leave this task out.'
            )
        return token

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, *args: Any, **kwargs: Any
    ) -> list[int]:
        """As HFLM: without special tokens if `string` begins with BOS, which needs a tokenizer with BOS."""
        if (
            add_special_tokens is None
            and self.tokenizer.bos_token_id is None
            and self.tokenizer.eos_token_id is None
        ):
            add_special_tokens = True
        ids: list[int] = super().tok_encode(string, add_special_tokens, *args, **kwargs)
        self._check_ids(ids, string)
        return ids

    def tok_batch_encode(self, strings: list[str], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """As HFLM, with a message where a token is none of the model's."""
        ids, mask = super().tok_batch_encode(strings, *args, **kwargs)
        self._check_ids(ids.flatten().tolist(), strings[0])
        return ids, mask

    def _check_ids(self, ids: Sequence[int], text: str) -> None:
        vocabulary = self.config.get_text_config(decoder=True).vocab_size
        check_ids(self.tokenizer, ids, vocabulary, f"the question '…{text.strip()[-60:]}'")

    def encoded(self, requests: Sequence[Instance]) -> list[Encoded]:
        """Texts and tokens of contexts and continuations, as HFLM makes them where it takes their likelihoods."""
        self._recorded = []
        try:
            HFLM.loglikelihood(self, list(requests), disable_tqdm=True)
            return self._recorded
        finally:
            self._recorded = None

    def _loglikelihood_tokens(
        self, requests: list[Any], *args: Any, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        if self._recorded is not None:
            self._recorded.extend(requests)
            return []
        return super()._loglikelihood_tokens(requests, *args, **kwargs)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """As HFLM, with a message where answers as long as the task allows leave no room for questions."""
        longest = max(
            normalize_gen_kwargs(request.args[1], self.max_gen_toks)["max_gen_toks"]
            for request in requests
        )
        if longest >= self.max_length:
            raise LaminaError(
                f"task '{requests[0].task_name}' generates up to {longest} tokens, which leaves no room for its "
                f"questions in the model's context of {self.max_length}. Write a smaller `max_gen_toks` under "
                "generation_kwargs in its task file, or leave the task out."
            )
        return super().generate_until(requests, disable_tqdm)

    def fit(
        self, texts: tuple[str, str] | None, before: Sequence[int], after: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens of a context and a continuation, cut to what the model reads at once as HFLM cuts them.

        The oldest tokens go (the first few-shot examples). One token more than the context is left, since the last one
        is predicted and never read.

        Raises LaminaError if one of the two has no token, or the continuation is longer than the context.
        """
        room = self.max_length
        for name, text, tokens in zip(
            ("question", "answer"), texts or ("", ""), (before, after), strict=True
        ):
            if not tokens or (name == "answer" and len(tokens) > room):
                fault = (
                    f"{len(tokens)} tokens, of which {room} fit into the model's context"
                    if tokens
                    else "no token"
                )
                raise LaminaError(
                    f"the {name} '{text.strip()[:60]}' has {fault}, so it cannot be scored. Leave it out, or use "
                    "another task."
                )
        kept = (*before, *after)[-(room + 1) :]
        return kept[: -len(after)], tuple(after)


def recorder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> EncodingLM:
    """An lm-eval model used for its encodings only; `model` may be a skeleton without weights."""
    return EncodingLM(pretrained=model, tokenizer=tokenizer, batch_size=1)


def scored_row(lm: EncodingLM, context: str, continuation: str, characters: int) -> Row:
    """The tokens of a context and of the continuation after it, whose length for `acc_norm` is `characters`."""
    return row(lm, encode(lm, context, continuation), characters)


def encode(lm: EncodingLM, context: str, continuation: str) -> Encoded:
    """A context and the continuation after it, with their tokens."""
    return lm.encoded([Instance("loglikelihood", {}, (context, continuation), 0)])[0]


def row(lm: EncodingLM, encoded: Encoded, characters: int) -> Row:
    """A row of a context and a continuation that fits into the model's context."""
    context, continuation = lm.fit(*encoded)
    return Row(context, continuation, characters, len(encoded[1]) - len(context))

"""Encodes rows as lm-eval does: from a context and its continuation to tokens."""

import logging
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data.calibrations import Row, check_ids
from lamina.errors import LaminaError

# HFLM warns that it gets a model object instead of a name, which is intended here.
logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)

Encoded = tuple[tuple[str, str], list[int], list[int]]
"""A context and a continuation in lm-eval's form: both texts, then the token ids of each."""


class EncodingLM(HFLM):
    """lm-eval's HFLM with messages for what it cannot encode.

    It also accepts tokenizers that have neither BOS nor EOS. lm-eval requires such a token for
    every question, although it needs one only if the question is empty.
    """

    _recorded: list[Encoded] | None = None  # what `encoded` collects

    @property
    def prefix_token_id(self) -> int:
        """BOS, else EOS: the token that stands for an empty question."""
        return self._require(
            super().prefix_token_id, "neither BOS nor EOS, one of which begins an empty question"
        )

    @property
    def eot_token_id(self) -> int:
        """EOS, which ends a generated answer."""
        return self._require(super().eot_token_id, "no EOS, which ends a generated answer")

    def _require(self, token_id: int | None, lack: str) -> int:
        if token_id is None:
            raise LaminaError(
                f"the tokenizer of {self.tokenizer.name_or_path} has {lack}. Name one in "
                'tokenizer_config.json (`"eos_token": "…"`, a token of its vocabulary), or leave '
                "this task out."
            )
        return token_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, *args: Any, **kwargs: Any
    ) -> list[int]:
        """As HFLM, which looks for BOS at the start of `string`; a tokenizer may have none."""
        has_bos = self.tokenizer.bos_token_id is not None
        has_eos = self.tokenizer.eos_token_id is not None
        if add_special_tokens is None and not has_bos and not has_eos:
            add_special_tokens = True
        token_ids: list[int] = super().tok_encode(string, add_special_tokens, *args, **kwargs)
        self._check_ids(token_ids, string)
        return token_ids

    def tok_batch_encode(self, strings: list[str], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """As HFLM, with a message if a token is not in the model's vocabulary."""
        token_ids, mask = super().tok_batch_encode(strings, *args, **kwargs)
        self._check_ids(token_ids.flatten().tolist(), strings[0])
        return token_ids, mask

    def _check_ids(self, token_ids: Sequence[int], text: str) -> None:
        vocabulary = self.config.get_text_config(decoder=True).vocab_size
        check_ids(self.tokenizer, token_ids, vocabulary, f"the question '…{text.strip()[-60:]}'")

    def encoded(self, requests: Sequence[Instance]) -> list[Encoded]:
        """Contexts and continuations with the tokens that HFLM encodes them to."""
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
        """As HFLM, with a message if the longest answers would leave no room for questions."""
        longest = max(self.answer_length(request.args[1]) for request in requests)
        if longest >= self.max_length:
            raise LaminaError(
                f"task '{requests[0].task_name}' generates up to {longest} tokens, which leaves no "
                f"room for its questions in the model's context of {self.max_length}. Write a "
                "smaller `max_gen_toks` under generation_kwargs in its task file, or leave the "
                "task out."
            )
        return super().generate_until(requests, disable_tqdm)

    def answer_length(self, generation_settings: dict[str, Any]) -> int:
        """The most tokens that a generated answer may have, from the settings of its task."""
        settings = normalize_gen_kwargs(generation_settings, self.max_gen_toks)
        return int(settings["max_gen_toks"])

    def fit(
        self, texts: tuple[str, str] | None, context: Sequence[int], continuation: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A context and a continuation, cut to what the model reads at once as HFLM cuts them.

        The oldest tokens are cut (the first few-shot examples). One token more than the model's
        context remains, because the last one is predicted and never read.

        texts: The question and the answer, for messages.

        Raises LaminaError if one of the two has no token, or the continuation is longer than the
        model's context.
        """
        question, answer = texts or ("", "")
        if not context:
            raise _cannot_score("question", question, "no token")
        if not continuation:
            raise _cannot_score("answer", answer, "no token")
        if len(continuation) > self.max_length:
            fault = (
                f"{len(continuation)} tokens, of which {self.max_length} fit into the model's "
                "context"
            )
            raise _cannot_score("answer", answer, fault)
        fitting = (*context, *continuation)[-(self.max_length + 1) :]
        return fitting[: -len(continuation)], tuple(continuation)


def _cannot_score(role: str, text: str, fault: str) -> LaminaError:
    return LaminaError(
        f"the {role} '{text.strip()[:60]}' has {fault}, so it cannot be scored. Leave it out, or "
        "use another task."
    )


def open_encoder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> EncodingLM:
    """An lm-eval model that is used for its encodings only.

    `model` may be a skeleton without weights.
    """
    return EncodingLM(pretrained=model, tokenizer=tokenizer, batch_size=1)


def scored_row(lm: EncodingLM, context: str, continuation: str, characters: int) -> Row:
    """The row of a context and a continuation whose length for `acc_norm` is `characters`."""
    return fit_row(lm, encode_pair(lm, context, continuation), characters)


def encode_pair(lm: EncodingLM, context: str, continuation: str) -> Encoded:
    """A context and the continuation after it, with their tokens."""
    request = Instance("loglikelihood", {}, (context, continuation), 0)
    return lm.encoded([request])[0]


def fit_row(lm: EncodingLM, encoded: Encoded, characters: int) -> Row:
    """The row of a context and a continuation, cut to the model's context."""
    context, continuation = lm.fit(*encoded)
    _, whole_context, _ = encoded
    return Row(context, continuation, characters, len(whole_context) - len(context))

"""What a person counts on a model: plain transformers, one text at a time, nothing of lamina."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict

import torch


class Question(TypedDict):
    """A question as a person reads it: `gold` is a choice's number, or a list of them."""

    query: str
    choices: list[str]
    gold: int | list[int]


def token_losses(model: Any, token_ids: Sequence[int]) -> list[float]:
    """The loss in nats of every token but the first, given all tokens before it."""
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0, :-1].double()
    log_probabilities = logits.log_softmax(-1)
    return [-float(row[token]) for row, token in zip(log_probabilities, token_ids[1:], strict=True)]


def count_texts(
    model: Any, tokenizer: Any, texts: Sequence[str], length: int | None
) -> dict[str, float]:
    """Facts of a calibration, or of a perplexity, of these texts; `length` is the most tokens of one."""
    sequences = [tokenizer(text)["input_ids"][:length] for text in texts]
    losses = [loss for sequence in sequences for loss in token_losses(model, sequence)]
    return {
        "n_samples": len(sequences),
        "n_tokens": sum(map(len, sequences)),
        "loss": sum(losses),
        "perplexity": math.exp(sum(losses) / len(losses)),
    }


def count_questions(model: Any, tokenizer: Any, questions: Sequence[Question]) -> dict[str, float]:
    """Facts of a calibration, or of a task, of these questions; the choice follows a blank."""
    right_by_sum = []
    right_by_character = []
    for question in questions:
        gold = question["gold"]
        golds = gold if isinstance(gold, list) else [gold]
        scores = []
        for choice in question["choices"]:
            n_context = len(tokenizer(question["query"])["input_ids"])
            whole = tokenizer(f"{question['query']} {choice}")["input_ids"]
            scores.append(-sum(token_losses(model, whole)[n_context - 1 :]))
        by_character = [
            score / len(choice) for score, choice in zip(scores, question["choices"], strict=True)
        ]
        right_by_sum.append(scores.index(max(scores)) in golds)
        right_by_character.append(by_character.index(max(by_character)) in golds)
    return {
        "n_samples": len(questions),
        "accuracy": sum(right_by_sum) / len(questions),
        "acc": sum(right_by_sum) / len(questions),
        "acc_norm": sum(right_by_character) / len(questions),
    }

"""Numbers of a model by plain transformers, one text at a time, with nothing of lamina."""

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
    """Facts of a calibration, or of a perplexity, of texts with at most `length` tokens each."""
    sequences = [tokenizer(text)["input_ids"][:length] for text in texts]
    losses = [loss for sequence in sequences for loss in token_losses(model, sequence)]
    return {
        "n_samples": len(sequences),
        "n_tokens": sum(map(len, sequences)),
        "loss": sum(losses),
        "perplexity": math.exp(sum(losses) / len(losses)),
    }


def choice_log_likelihood(model: Any, tokenizer: Any, query: str, choice: str) -> float:
    """Of a choice after the question and a blank."""
    n_context = len(tokenizer(query)["input_ids"])
    token_ids = tokenizer(f"{query} {choice}")["input_ids"]
    return -sum(token_losses(model, token_ids)[n_context - 1 :])


def count_questions(model: Any, tokenizer: Any, questions: Sequence[Question]) -> dict[str, float]:
    """Facts of a calibration, or of a task, of these questions."""
    n_right = 0
    n_right_per_character = 0
    for question in questions:
        gold = question["gold"]
        right_choices = gold if isinstance(gold, list) else [gold]
        scores = []
        scores_per_character = []
        for choice in question["choices"]:
            score = choice_log_likelihood(model, tokenizer, question["query"], choice)
            scores.append(score)
            scores_per_character.append(score / len(choice))
        n_right += scores.index(max(scores)) in right_choices
        best_per_character = scores_per_character.index(max(scores_per_character))
        n_right_per_character += best_per_character in right_choices
    return {
        "n_samples": len(questions),
        "accuracy": n_right / len(questions),
        "acc": n_right / len(questions),
        "acc_norm": n_right_per_character / len(questions),
    }

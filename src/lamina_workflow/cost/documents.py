"""Estimate the tokens of a benchmark's documents from their characters.

Benchmarks are tokenised only when they run. Known before are the characters of their questions and
choices, and the characters per token of the model's tokenizer, measured on a calibration.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from lamina.data.calibrations import Sample
from lamina.data.task_files import list_task_keys
from lamina.store import parquet
from lamina_workflow.cost.work import Tokens

N_DECODED_SAMPLES = 20  # of each calibration


def measure_characters(tokenizer: Any, samples: Iterable[Sample]) -> float:
    """Mean characters per token, over the first of these samples.

    tokenizer: The model's tokenizer, from transformers.
    """
    n_characters = 0
    n_tokens = 0
    for sample in samples:
        token_ids = sample.sequence()
        n_characters += len(tokenizer.decode(token_ids, skip_special_tokens=True))
        n_tokens += len(token_ids)
    return max(1, n_characters) / max(1, n_tokens)


def count_style_tokens(tokenizer: Any, manifest: Mapping[str, Any]) -> int:
    """Tokens that the chat template and the system prompt of a model add to a question."""
    system_prompt = manifest["system_prompt"]
    if not manifest["chat_template"]:
        return len(tokenizer(system_prompt)["input_ids"]) if system_prompt else 0
    turns = [{"role": "user", "content": "?"}]
    if system_prompt:
        turns.insert(0, {"role": "system", "content": system_prompt})
    prompt = tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True, **manifest["template_arguments"]
    )
    return len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) - 1  # the question


def find_longest_answer(task: str, root: Path) -> int:
    """The most tokens that a model may write to a question of a task; 0 if it writes nothing."""
    lengths = [0]
    for keys in list_task_keys(task, root):
        if keys.get("output_type", "generate_until") == "generate_until":
            settings = normalize_gen_kwargs(keys.get("generation_kwargs") or {})
            lengths.append(settings["max_gen_toks"])
    return max(lengths)


def count_document_tokens(
    task_file: Path,
    characters_per_token: float,
    n_examples: int = 0,
    n_style_tokens: int = 0,
    longest_answer: int = 0,
) -> Tokens:
    """Tokens of a task's documents. A document with one choice has a written answer.

    n_examples: Few-shot examples before each question, assumed to be as long as the questions.
    n_style_tokens: Tokens that the prompt's style adds to each question.
    longest_answer: The most tokens that a model may write to a question.
    """
    table = parquet.read_table(task_file, ["question_characters", "choice_characters"])
    questions = [characters / characters_per_token for characters in table[0].to_pylist()]
    answers = [
        [max(1, round(characters / characters_per_token)) for characters in choices]
        for choices in table[1].to_pylist()
    ]
    mean_question = sum(questions) / max(1, len(questions))
    mean_answer = _mean([_mean(lengths) for lengths in answers])
    added_tokens = n_examples * (mean_question + mean_answer) + n_style_tokens

    lines: list[int] = []
    n_row_tokens = 0.0
    n_scored = 0
    for question, choices in zip(questions, answers, strict=True):
        context = added_tokens + question
        rest_tokens = [length - 1 for length in choices]  # the last token is only predicted
        lines.append(round(context + sum(rest_tokens)))
        # Choices of one token share their row.
        n_rows = max(1, sum(rest > 0 for rest in rest_tokens))
        n_row_tokens += n_rows * context + sum(rest_tokens)
        n_scored += 1 + sum(rest_tokens)  # one position predicts the first tokens of all choices
    n_answer_tokens = sum(_mean(lengths) for lengths in answers)
    n_asked_tokens = sum(questions) + len(questions) * added_tokens
    is_written = all(len(lengths) == 1 for lengths in answers)
    return Tokens(
        samples=len(questions),
        packed=sum(lines),
        rows=round(n_row_tokens),
        stream=round(n_asked_tokens + n_answer_tokens),
        longest=max(lines, default=0),
        scored=n_scored,
        lines=tuple(sorted(lines)),
        answers=round(n_answer_tokens),
        asked=round(n_asked_tokens) if is_written else 0,
        longest_written=longest_answer * len(questions) if is_written else 0,
    )


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(1, len(numbers))

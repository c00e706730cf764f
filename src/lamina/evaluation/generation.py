"""Scores generated answers: exact match, pass@k of sampled answers, repetition and length.

lm-eval builds the prompts, runs the model with its cache, cuts answers at their stops and compares
them. Its sampling draws from one stream of random numbers, so that an answer depends on its batch.
Here each question has its own random numbers, which are the same for every variant.
`answer_calibration` makes a calibration from what the base model writes.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import comb
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.config.task import TaskConfig
from lm_eval.models.utils import normalize_gen_kwargs
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lamina.data.calibrations import CalibrationSamples, Row
from lamina.data.encoding import open_encoder
from lamina.data.prepare import draw_tasks
from lamina.data.prompts import PLAIN, Style
from lamina.data.task_groups import DatasetTask
from lamina.errors import LaminaError
from lamina.evaluation.tasks import TaskBenchmark, TaskScores, VariantLM
from lamina.evaluation.together import Together
from lamina.models.boundary import assert_finite
from lamina.models.load import load_tokenizer
from lamina.options.benchmarks import Generate
from lamina.options.calibrations import Hub, Task, Tasks, Text

_WRITTEN_FILTER = "written"  # for the metric `exact_match,written` of tasks with choices
_MAX_CHOICE_TOKENS = 32  # of an answer that is a choice

Prompt = tuple[int, ...]
"""A prompt as token ids."""
Values = dict[str, dict[int, float]]
"""Measured values by metric and then by the index of the document."""


class Answer(NamedTuple):
    """The tokens of an answer before its stop."""

    tokens: list[int]
    stop: list[int]
    """The tokens that ended it; empty if it reached the maximum length."""


class JudgedRow(NamedTuple):
    """A prompt with the answer that the model wrote."""

    row: Row
    is_right: bool | None
    """Whether the answer is an exact match; None if exact match is not measured."""


def pass_at(k: int, samples: int, correct: int) -> float:
    """Probability that one of `k` answers is right, from c = `correct` of n = `samples`.

    1 - C(n - c, k) / C(n, k) is the share of the k-subsets of the answers that hold a right one, so
    the estimate is unbiased [arXiv 2107.03374, eq. 1].
    """
    return 1 - comb(samples - correct, k) / comb(samples, k)


def repeated_share(tokens: Sequence[int], n: int) -> float:
    """Share of an answer's n-grams that occur earlier in it: 1 - distinct / all.

    It is 0 for fewer than n tokens.
    """
    ngrams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def random_numbers(seed: int, draw: int, prompt: Sequence[int], count: int) -> np.ndarray:
    """Uniform random numbers (count,) for sample `draw` of an answer.

    They depend on the tokens of the prompt.
    """
    return np.random.default_rng([seed, draw, *prompt]).random(count)


def write_choices(task: ConfigurableTask) -> ConfigurableTask:
    """Turn a task with choices into one with the same questions and generated answers.

    White space around an answer does not count. Few-shot examples keep the right choice as their
    answer.

    Raises LaminaError if the task's choices are part of its questions, or if it has several right
    ones.
    """
    name = task.config.task
    if task.multiple_input:
        raise LaminaError(
            f"benchmarks.tasks.{name}.generate: the choices of task '{name}' are questions, so "
            "there is no answer to write. Leave `generate` out."
        )

    def right_text(doc: dict[str, Any]) -> str:
        gold = task.doc_to_target(doc)
        if isinstance(gold, list):
            raise LaminaError(
                f"benchmarks.tasks.{name}.generate: task '{name}' has several right choices per "
                "document. Leave `generate` out."
            )
        return str(task.doc_to_choice(doc)[gold] if isinstance(gold, int) else gold)

    config = {
        field.name: getattr(task.config, field.name) for field in dataclasses.fields(TaskConfig)
    }
    config |= {
        "output_type": "generate_until",
        "doc_to_target": right_text,
        "doc_to_choice": None,
        "process_results": None,
        "fewshot_config": dataclasses.replace(
            task.config.fewshot_config, doc_to_target=right_text, doc_to_choice=None
        ),
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": _MAX_CHOICE_TOKENS},
        "metric_list": [
            {
                "metric": "exact_match",
                "aggregation": "mean",
                "higher_is_better": True,
                "regexes_to_ignore": [r"^\s+|\s+$"],
            }
        ],
        "filter_list": [{"name": _WRITTEN_FILTER, "filter": [{"function": "take_first"}]}],
    }
    return DatasetTask(task.dataset, config)


def greedy_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The stops and the longest length of a task's generation settings.

    Its sampling, beams and penalties are left out.
    """
    kept = {key: settings[key] for key in ("until", "max_gen_toks") if key in settings}
    return kept | {"do_sample": False, "temperature": 0.0}


class WritingLM(VariantLM):
    """VariantLM that keeps the answers of its last `generate_until` as tokens, by their prompt.

    If `draw` is None it takes the likeliest tokens; if it is a number, it draws the sample of that
    number. The random numbers, one per token, depend only on the seed, `draw` and the prompt.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: Generate
    ) -> None:
        super().__init__(model, tokenizer, "the base model")
        self.temperature = options.temperature
        self.seed = options.seed
        self.draw: int | None = None
        self.answers: dict[Prompt, Answer] = {}

    def prompt(self, request: Instance) -> Prompt:
        """The prompt of a request as tokens, cut to the context as `generate_until` cuts it."""
        question, settings = cast(tuple[str, dict[str, Any]], request.args)
        longest_prompt = self.max_length - settings["max_gen_toks"]
        token_ids, _ = self.tok_batch_encode(
            [question], left_truncate_len=longest_prompt, truncation=self.truncation
        )
        return tuple(token_ids[0].tolist())

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Does the same as VariantLM, and keeps the answers to these requests in `answers`."""
        self.answers = {}
        return super().generate_until(requests, disable_tqdm)

    def continue_prompts(self, prompts: Sequence[Prompt], length: int) -> None:
        """Continue each prompt, and keep the continuations in `answers`.

        A text ends when it has `length` tokens, prompt included, or when the model ends it.
        """
        self.answers = {}
        self._run_in_fitting_batches(partial(self._write_batches, prompts, length))

    def _write_batches(self, prompts: Sequence[Prompt], length: int) -> None:
        """Write in batches of prompts of equal length, so that none is padded."""
        for _, same_length in groupby(sorted(set(prompts), key=len), len):
            token_ids = torch.tensor(list(same_length), device=self.device)
            for batch in token_ids.split(int(self.batch_size_per_gpu)):
                self._model_generate(batch, length, [], attention_mask=torch.ones_like(batch))

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any
    ) -> torch.Tensor:
        mask = settings["attention_mask"].bool()
        prompts = [
            tuple(token_ids[is_token].tolist())
            for token_ids, is_token in zip(context, mask, strict=True)
        ]
        start = context.shape[1]
        if self.draw is not None:
            draw = partial(random_numbers, self.seed, self.draw, count=max_length - start)
            uniform = torch.from_numpy(np.stack([draw(prompt) for prompt in prompts]))
            sampling = _TokenDraw(self.name, uniform.to(context.device), start, self.temperature)
            settings["logits_processor"] = LogitsProcessorList([sampling])
        output = super()._model_generate(context, max_length, stop, **settings)
        for prompt, token_ids in zip(prompts, output[:, start:].tolist(), strict=True):
            self.answers[prompt] = self._cut_answer(token_ids, stop)
        return output

    def _cut_answer(self, token_ids: list[int], stops: list[str]) -> Answer:
        """The tokens before the first end-of-text token and the first stop string."""
        end_ids = self.model.generation_config.eos_token_id
        end_ids = {*(end_ids if isinstance(end_ids, list) else [end_ids])}
        end_ids.add(self.tokenizer.eos_token_id)
        end = len(token_ids)
        for position, token_id in enumerate(token_ids):
            if token_id in end_ids:
                end = position
                break
        before_end = token_ids[:end]
        if not self._holds_stop(stops, before_end):
            return Answer(before_end, token_ids[end : end + 1])

        # A text that holds a stop still holds it after more tokens. So bisection finds the first
        # token that completes a stop: the text of `n_before` tokens has none, that of one more
        # token has.
        n_before = bisect_left(
            range(1, len(before_end)),
            True,
            key=lambda length: self._holds_stop(stops, before_end[:length]),
        )
        return Answer(before_end[:n_before], before_end[n_before : n_before + 1])

    def _holds_stop(self, stops: Sequence[str], token_ids: list[int]) -> bool:
        text = self.tok_decode(token_ids, skip_special_tokens=False)
        return any(stop in text for stop in stops if stop)


class _TokenDraw(LogitsProcessor):
    """Leaves only one token of each row, drawn with the row's random number.

    It is the token in whose interval of the cumulative softmax the number falls.

    uniform: Numbers (rows, tokens), one for each token that is written.
    start: The position of the first of these tokens.
    """

    def __init__(self, name: str, uniform: torch.Tensor, start: int, temperature: float) -> None:
        self.name = name
        self.uniform = uniform
        self.start = start
        self.temperature = temperature

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        assert_finite(scores, self.name, "the generation of an answer")
        cumulative = (scores.double() / self.temperature).softmax(-1).cumsum(-1)
        token_index = input_ids.shape[1] - self.start
        number = self.uniform[:, token_index, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, number, right=True).clamp(max=scores.shape[-1] - 1)
        alone = torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)
        return cast(torch.FloatTensor, alone)


class GenerationBenchmark(TaskBenchmark):
    """Scores the answers that variants write to the questions of one lm-eval task.

    Raises LaminaError as TaskBenchmark does, or if the task scores neither choices nor generated
    texts, or if its samples cannot be right or wrong.
    """

    def __init__(
        self,
        task: ConfigurableTask,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        options: Generate,
        limit: int | None = None,
        style: Style = PLAIN,
    ) -> None:
        output_type = task.config.output_type
        key = f"benchmarks.tasks.{task.config.task}.generate"
        if output_type not in ("multiple_choice", "generate_until"):
            raise LaminaError(
                f"{key}: task '{task.config.task}' scores by {output_type}, so no answer is "
                "written. Leave `generate` out."
            )
        self.options = options
        self.has_choices = output_type == "multiple_choice"
        if self.has_choices:
            task = write_choices(task)
        if options.samples and "exact_match" not in task.aggregation():
            raise LaminaError(
                f"{key}.samples: task '{task.config.task}' has no exact_match, so sampled answers "
                "cannot be marked right or wrong. Leave `samples` out."
            )
        self.writer = WritingLM(model, tokenizer, options)
        settings = normalize_gen_kwargs(task.config.generation_kwargs, self.writer.max_gen_toks)
        longest = options.max_tokens or settings["max_gen_toks"]
        if longest >= self.writer.max_length:
            raise LaminaError(
                f"{key}.max_tokens: {longest} tokens leave no room for a question in the model's "
                f"context of {self.writer.max_length}. Write fewer."
            )
        task.set_config("generation_kwargs", greedy_settings(settings | {"max_gen_toks": longest}))
        task.set_config("repeats", 1)
        super().__init__(task, model, tokenizer, limit, style, self.writer)
        self.prompts = {request.doc_id: self.writer.prompt(request) for request in task.instances}

    def score(
        self, model: PreTrainedModel, name: str, together: Together | None = None
    ) -> TaskScores:
        """Score the answers of one variant, called `name` in messages.

        The metrics are `exact_match,written` of tasks with choices (other tasks have their exact
        match as benchmarks); `repetition`, `unstopped` and `length` of the likeliest answers; and
        of the samples `pass@k` and the same three with the prefix `sampled_`.

        Raises LaminaError if the variant gives NaN.
        """
        self.writer.draw = None
        likeliest = super().score(model, name, together)
        measured = self._measure_wear() | self._score_samples(model, name)

        first_row = likeliest.metrics[0]
        common_columns = {
            key: first_row[key]
            for key in ("task", "n_samples", "n_cut", "n_undecided", "n_shot", "task_version")
        }
        metric_rows: list[dict[str, Any]] = []
        sample_rows: list[dict[str, Any]] = []
        if self.has_choices:
            # The metrics that a task itself has for written answers are among the benchmarks
            # already.
            metric_rows += likeliest.metrics
            sample_rows += likeliest.samples
        for metric, value_by_document in measured.items():
            values = list(value_by_document.values())
            metric_rows.append(common_columns | _average(metric, values))
            for document, value in value_by_document.items():
                sample_rows.append(
                    {
                        "task": first_row["task"],
                        "sample": document,
                        "metric": metric,
                        "value": value,
                    }
                )
        return TaskScores(metric_rows, sample_rows)

    def _measure_wear(self) -> Values:
        """Repetition, missing stops and length of the last answers."""
        repetitions: dict[int, float] = {}
        unstopped: dict[int, float] = {}
        lengths: dict[int, float] = {}
        for document, prompt in self.prompts.items():
            answer = self.writer.answers[prompt]
            repetitions[document] = repeated_share(answer.tokens, self.options.ngram)
            unstopped[document] = float(not answer.stop)
            lengths[document] = float(len(answer.tokens))
        return {"repetition": repetitions, "unstopped": unstopped, "length": lengths}

    def _score_samples(self, model: PreTrainedModel, name: str) -> Values:
        """pass@k of the samples, for each filter of the task, and the mean wear of the samples."""
        n_samples = self.options.samples
        n_right: dict[str, dict[int, int]] = {}  # by filter, and then by document
        mean_wear: Values = {}
        for draw in range(n_samples):
            self.writer.draw = draw
            for row in super().score(model, name).samples:
                metric, _, filter_name = row["metric"].partition(",")
                if metric == "exact_match":
                    right = n_right.setdefault(filter_name, {})
                    right[row["sample"]] = right.get(row["sample"], 0) + int(row["value"] > 0)
            for metric, value_by_document in self._measure_wear().items():
                means = mean_wear.setdefault(f"sampled_{metric}", {})
                for document, value in value_by_document.items():
                    means[document] = means.get(document, 0.0) + value / n_samples

        passed: Values = {}
        for filter_name, right in n_right.items():
            suffix = f",{filter_name}" if filter_name and not self.has_choices else ""
            for k in self.options.ks:
                passed[f"pass@{k}{suffix}"] = {
                    document: pass_at(k, n_samples, count) for document, count in right.items()
                }
        return passed | mean_wear


def _average(metric: str, values: Sequence[float]) -> dict[str, Any]:
    """Mean over questions and its standard error s / √n; n counts questions, not samples."""
    stderr = None
    if len(values) > 1:
        stderr = float(np.std(values, ddof=1)) / len(values) ** 0.5
    higher_is_better = None if metric.endswith("length") else metric.startswith("pass@")
    return {
        "metric": metric,
        "value": float(np.mean(values)),
        "stderr": stderr,
        "higher_is_better": higher_is_better,
    }


def answer_calibration(
    name: str,
    entry: Task | Tasks | Text | Hub,
    questions: CalibrationSamples,
    model: PreTrainedModel,
    manifest: dict[str, Any],
    root: Path,
) -> CalibrationSamples:
    """The questions of calibration `name` with the answers that the model writes, token by token.

    Fact `right` says for each sample whether its task's exact match calls it right; null if there
    is no exact match. Texts are continued after the first tokens of each.

    manifest: The model's manifest.
    """
    tokenizer = load_tokenizer(manifest)
    seed = entry.seed if isinstance(entry, Task | Tasks) else 0
    writer = WritingLM(model, tokenizer, Generate(temperature=entry.temperature or 1.0, seed=seed))
    writer.draw = 0 if entry.temperature else None

    judged: list[JudgedRow] = []
    if isinstance(entry, Task | Tasks):
        encoder = open_encoder(model, tokenizer)
        for task, _ in draw_tasks(name, entry, encoder, Style.of(manifest), root):
            judged += answer_task(task, writer)
    else:
        prompts = [sample.sequence()[: entry.prompt] for sample in questions.samples]
        writer.continue_prompts(prompts, entry.length)
        for prompt in prompts:
            row = _make_row(prompt, writer.answers[prompt], tokenizer, n_cut=0)
            judged.append(JudgedRow(row, is_right=None))

    samples = [
        dataclasses.replace(sample, gold=0, rows=(answer.row,), also=())
        for sample, answer in zip(questions.samples, judged, strict=True)
    ]
    is_right = [answer.is_right for answer in judged]
    return CalibrationSamples(tuple(samples), questions.facts | {"right": is_right})


def answer_task(
    task: ConfigurableTask, writer: WritingLM, asked: Sequence[Instance] | None = None
) -> Iterator[JudgedRow]:
    """A row for each answer to the requests of a task, in their order.

    asked: The requests that are answered; all if it is None.

    An answer is right if exact match is 1 after any of the task's filters.
    """
    asked = task.instances if asked is None else asked
    if not asked:
        return
    settings = normalize_gen_kwargs(task.config.generation_kwargs, writer.max_gen_toks)
    for request in task.instances:
        request.arguments = (request.args[0], greedy_settings(settings))
        request.resps = [""]  # for the filters, also of requests that are not asked
    for request, text in zip(asked, writer.generate_until(list(asked)), strict=True):
        request.resps = [text]
    task.apply_filters()
    for request in asked:
        scores = [
            task.process_results(request.doc, [response])
            for response in request.filtered_resps.values()
        ]
        is_right = None
        if "exact_match" in scores[0]:
            is_right = any(score["exact_match"] > 0 for score in scores)
        prompt = writer.prompt(request)
        n_cut = len(writer.tok_encode(request.args[0])) - len(prompt)
        row = _make_row(prompt, writer.answers[prompt], writer.tokenizer, n_cut)
        yield JudgedRow(row, is_right)


def _make_row(
    prompt: Prompt, answer: Answer, tokenizer: PreTrainedTokenizerBase, n_cut: int
) -> Row:
    """The row of a prompt and the answer after it."""
    continuation = (*answer.tokens, *answer.stop)
    return Row(prompt, continuation, len(tokenizer.decode(answer.tokens)), n_cut)

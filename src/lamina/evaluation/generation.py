"""Answers that a model writes: exact match, pass@k of sampled answers, and how much they repeat themselves.

lm-eval makes the prompts, runs the model with its cache, cuts answers at their stops and compares them. Its sampling
draws from one stream of random numbers, so that an answer depends on its batch. Here each question has its own random
numbers, which are the same for every variant. `own_answers` makes a calibration of what the unpruned model writes.
"""

import dataclasses
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import comb
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

from lamina.config import calibrations as entries
from lamina.config.benchmarks import Generate
from lamina.data.calibrations import Calibration, Row
from lamina.data.prompts import PLAIN, Style
from lamina.data.task_groups import DatasetTask
from lamina.errors import LaminaError
from lamina.evaluation.tasks import TaskBenchmark, TaskScores, VariantLM
from lamina.evaluation.together import Together
from lamina.models.boundary import assert_finite

WRITTEN = "exact_match,written"
_MAX_TOKENS = 32

Prompt = tuple[int, ...]
Values = dict[str, dict[int, float]]  # by metric and document


class Answer(NamedTuple):
    """The tokens of an answer before its stop, and those that ended it; none if it reached the length allowed."""

    tokens: list[int]
    stop: list[int]


def pass_at(k: int, samples: int, correct: int) -> float:
    """Chance that one of `k` answers is right, from c = `correct` of n = `samples` [arXiv 2107.03374, eq. 1].

    1 - C(n - c, k) / C(n, k) is the share of the k-subsets of the answers that hold a right one, so it has no bias.
    """
    return 1 - comb(samples - correct, k) / comb(samples, k)


def repetition(tokens: Sequence[int], n: int) -> float:
    """Share of an answer's n-grams that occur earlier in it: 1 - distinct / all; 0 for fewer than n tokens."""
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def numbers(seed: int, draw: int, prompt: Sequence[int], count: int) -> np.ndarray:
    """Uniform random numbers (count,) for sample `draw` of an answer; they depend on the tokens of the prompt."""
    return np.random.default_rng([seed, draw, *prompt]).random(count)


def written(task: ConfigurableTask) -> ConfigurableTask:
    """A task with choices as a task with the same questions, whose answer is to write the right choice.

    White space around an answer does not count. Few-shot examples stay as they are: solved with the right choice.

    Raises LaminaError if the task's choices stand in its questions, or it has several right ones.
    """
    name = task.config.task
    if task.multiple_input:
        raise LaminaError(
            f"benchmarks.tasks.{name}.generate: the choices of task '{name}' are questions, so there is no answer to "
            "write. Leave `generate` out."
        )

    def answer(doc: dict[str, Any]) -> str:
        gold = task.doc_to_target(doc)
        if isinstance(gold, list):
            raise LaminaError(
                f"benchmarks.tasks.{name}.generate: task '{name}' has several right choices per document. Leave "
                "`generate` out."
            )
        return str(task.doc_to_choice(doc)[gold] if isinstance(gold, int) else gold)

    same = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    config = {
        field.name: getattr(task.config, field.name) for field in dataclasses.fields(TaskConfig)
    } | {
        "output_type": "generate_until",
        "doc_to_target": answer,
        "doc_to_choice": None,
        "process_results": None,
        "fewshot_config": dataclasses.replace(
            task.config.fewshot_config, doc_to_target=answer, doc_to_choice=None
        ),
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": _MAX_TOKENS},
        "metric_list": [same | {"regexes_to_ignore": [r"^\s+|\s+$"]}],
        "filter_list": [
            {"name": WRITTEN.partition(",")[2], "filter": [{"function": "take_first"}]}
        ],
    }
    return DatasetTask(task.dataset, config)


def greedy(settings: dict[str, Any]) -> dict[str, Any]:
    """The stops and the longest length of a task's generation settings, without its sampling, beams and penalties."""
    kept = {key: settings[key] for key in ("until", "max_gen_toks") if key in settings}
    return kept | {"do_sample": False, "temperature": 0.0}


class WritingLM(VariantLM):
    """VariantLM that keeps the answers of its last `generate_until` as tokens, by their prompt.

    With `draw` left None it takes the likeliest tokens; with a number, it draws the sample of that number. The
    seed, `draw` and the prompt alone decide the random numbers, one per token.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: Generate
    ) -> None:
        super().__init__(model, tokenizer, "the base model")
        self.temperature, self.seed = options.temperature, options.seed
        self.draw: int | None = None
        self.answers: dict[Prompt, Answer] = {}

    def prompt(self, request: Instance) -> Prompt:
        """The prompt of a request as tokens, cut to the context as `generate_until` cuts it."""
        question, settings = cast(tuple[str, dict[str, Any]], request.args)
        room = self.max_length - settings["max_gen_toks"]
        ids, _ = self.tok_batch_encode(
            [question], left_truncate_len=room, truncation=self.truncation
        )
        return tuple(ids[0].tolist())

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Does the same as VariantLM, and keeps the answers to these requests in `answers`."""
        self.answers = {}
        return super().generate_until(requests, disable_tqdm)

    def go_on(self, prompts: Sequence[Prompt], length: int) -> None:
        """Go on after each prompt until both have `length` tokens, or the model ends; `answers` has what is written."""
        self.answers = {}

        def write() -> None:
            for _, alike in groupby(sorted(set(prompts), key=len), len):
                ids = torch.tensor(list(alike), device=self.device)
                for some in ids.split(int(self.batch_size_per_gpu)):
                    self._model_generate(some, length, [], attention_mask=torch.ones_like(some))

        self._in_batches(write)

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any
    ) -> torch.Tensor:
        mask = settings["attention_mask"].bool()
        prompts = [tuple(row[kept].tolist()) for row, kept in zip(context, mask, strict=True)]
        start, steps = context.shape[1], max_length - context.shape[1]
        if self.draw is not None:
            uniform = np.stack([numbers(self.seed, self.draw, prompt, steps) for prompt in prompts])
            drawn = _Drawn(
                self.name, torch.from_numpy(uniform).to(context.device), start, self.temperature
            )
            settings["logits_processor"] = LogitsProcessorList([drawn])
        written = super()._model_generate(context, max_length, stop, **settings)
        for row, tokens in zip(prompts, written[:, start:].tolist(), strict=True):
            self.answers[row] = self._answer(tokens, stop)
        return written

    def _answer(self, tokens: list[int], stop: list[str]) -> Answer:
        """The tokens before the first end-of-text token and the first stop string."""
        ends = self.model.generation_config.eos_token_id
        ends = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id}
        kept = tokens[
            : next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
        ]

        def holds_stop(length: int) -> bool:
            text = self.tok_decode(kept[:length], skip_special_tokens=False)
            return any(term in text for term in stop if term)

        if not holds_stop(len(kept)):
            return Answer(kept, tokens[len(kept) :][:1])
        before = bisect_left(
            range(1, len(kept)), True, key=holds_stop
        )  # a text keeps its stop when it goes on
        return Answer(kept[:before], kept[before : before + 1])


class _Drawn(LogitsProcessor):
    """Leaves one token of each row: the row's number falls into that token's part of the cumulative softmax."""

    def __init__(self, name: str, uniform: torch.Tensor, start: int, temperature: float) -> None:
        self.name, self.uniform, self.start, self.temperature = name, uniform, start, temperature

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        assert_finite(scores, self.name, "the generation of an answer")
        shares = (scores.double() / self.temperature).softmax(-1).cumsum(-1)
        number = self.uniform[:, input_ids.shape[1] - self.start, None] * shares[:, -1:]
        token = torch.searchsorted(shares, number, right=True).clamp(max=scores.shape[-1] - 1)
        return cast(torch.FloatTensor, torch.full_like(scores, -torch.inf).scatter(1, token, 0.0))


class GenerationBenchmark(TaskBenchmark):
    """Answers that variants write to the questions of one lm-eval task.

    Raises LaminaError as TaskBenchmark, or if the task scores neither choices nor generated texts, or its samples
    cannot be right or wrong.
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
        kind, name = task.config.output_type, task.config.task
        if kind not in ("multiple_choice", "generate_until"):
            raise LaminaError(
                f"benchmarks.tasks.{name}.generate: task '{name}' scores by {kind}, which writes nothing. Leave "
                "`generate` out."
            )
        self.chosen, self.options = kind == "multiple_choice", options
        task = written(task) if self.chosen else task
        if options.samples and "exact_match" not in task.aggregation():
            raise LaminaError(
                f"benchmarks.tasks.{name}.generate.samples: task '{name}' has no exact_match, so that no sampled "
                "answer is right or wrong. Leave `samples` out."
            )
        self.writer = WritingLM(model, tokenizer, options)
        settings = normalize_gen_kwargs(task.config.generation_kwargs, self.writer.max_gen_toks)
        longest = options.max_tokens or settings["max_gen_toks"]
        if longest >= self.writer.max_length:
            raise LaminaError(
                f"benchmarks.tasks.{name}.generate.max_tokens: {longest} tokens leave no room for a question in the "
                f"model's context of {self.writer.max_length}. Write fewer."
            )
        task.set_config("generation_kwargs", greedy(settings | {"max_gen_toks": longest}))
        task.set_config("repeats", 1)
        super().__init__(task, model, tokenizer, limit, style, self.writer)
        self.prompts = {
            instance.doc_id: self.writer.prompt(instance) for instance in task.instances
        }

    def score(
        self, model: PreTrainedModel, name: str, together: Together | None = None
    ) -> TaskScores:
        """Score the answers of one variant, called `name` in messages.

        The metrics are `exact_match,written` of tasks with choices (other tasks have their exact match as benchmarks);
        `repetition`, `unstopped` and `length` of the likeliest answers; and of the samples `pass@k` and the same three
        with the prefix `sampled_`.

        Raises LaminaError if the variant gives NaN.
        """
        self.writer.draw = None
        choices = super().score(model, name, together)
        row = {
            key: choices.metrics[0][key]
            for key in ("task", "n_samples", "n_cut", "n_undecided", "n_shot", "task_version")
        }
        metrics, samples = [], []
        for metric, values in (self._wear() | self._sampled(model, name)).items():
            metrics.append(row | _mean(metric, list(values.values())))
            samples += [
                {"task": row["task"], "sample": d, "metric": metric, "value": v}
                for d, v in values.items()
            ]
        # What a task measures of written answers by itself stands among the benchmarks already.
        return TaskScores(
            choices.metrics * self.chosen + metrics, choices.samples * self.chosen + samples
        )

    def _wear(self) -> Values:
        """Repetition, missing stops and length of the last answers."""
        answers = {
            document: self.writer.answers[prompt] for document, prompt in self.prompts.items()
        }
        return {
            "repetition": {
                document: repetition(each.tokens, self.options.ngram)
                for document, each in answers.items()
            },
            "unstopped": {document: float(not each.stop) for document, each in answers.items()},
            "length": {document: float(len(each.tokens)) for document, each in answers.items()},
        }

    def _sampled(self, model: PreTrainedModel, name: str) -> Values:
        """pass@k of the samples, for each filter of the task, and the means of `_wear` over the samples."""
        n, sums = (
            self.options.samples,
            defaultdict[str, dict[int, float]](lambda: defaultdict(float)),
        )
        right = defaultdict[str, dict[int, int]](lambda: defaultdict(int))
        for draw in range(n):
            self.writer.draw = draw
            for sample in super().score(model, name).samples:
                metric, _, by = sample["metric"].partition(",")
                if metric == "exact_match":
                    right[f",{by}" if by and not self.chosen else ""][sample["sample"]] += (
                        sample["value"] > 0
                    )
            for metric, each in self._wear().items():
                for document, value in each.items():
                    sums[f"sampled_{metric}"][document] += value / n
        passed = {
            f"pass@{k}{by}": {document: pass_at(k, n, count) for document, count in counts.items()}
            for by, counts in right.items()
            for k in self.options.ks
        }
        return passed | sums


def _mean(metric: str, values: list[float]) -> dict[str, Any]:
    """Mean over questions and its standard error s / √n; n counts questions, not samples."""
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else None
    better = None if metric.endswith("length") else metric.startswith("pass@")
    return {
        "metric": metric,
        "value": float(np.mean(values)),
        "stderr": error,
        "higher_is_better": better,
    }


def own_answers(
    entry: entries.Calibration,
    questions: Calibration,
    tasks: Iterable[ConfigurableTask],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> Calibration:
    """The questions of a calibration with the answers that the model itself writes, as the tokens that it wrote.

    tasks: Those of the questions, with their requests (`lamina.data.prepare.drawn`); none for texts, which go on after
        the first tokens of each of `questions`.

    Fact `right` says of each sample whether its task's exact match calls it right; null where there is none.
    """
    assert isinstance(entry, entries.Task | entries.Tasks | entries.Text | entries.Hub)
    seed = entry.seed if isinstance(entry, entries.Task | entries.Tasks) else 0
    writer = WritingLM(model, tokenizer, Generate(temperature=entry.temperature or 1.0, seed=seed))
    writer.draw = 0 if entry.temperature else None
    if isinstance(entry, entries.Task | entries.Tasks):
        found = [pair for task in tasks for pair in _written_rows(task, writer)]
    else:
        prompts = [sample.sequence()[: entry.prompt] for sample in questions.samples]
        writer.go_on(prompts, entry.length)
        found = [(_row(prompt, writer.answers[prompt], tokenizer, 0), None) for prompt in prompts]
    pairs = zip(questions.samples, found, strict=True)
    samples = [
        dataclasses.replace(sample, gold=0, rows=(row,), also=()) for sample, (row, _) in pairs
    ]
    return Calibration(tuple(samples), questions.facts | {"right": [right for _, right in found]})


def _written_rows(task: ConfigurableTask, writer: WritingLM) -> Iterator[tuple[Row, bool | None]]:
    """A row for each answer to the requests of a task, and whether exact match, after any of its filters, is 1."""
    settings = normalize_gen_kwargs(task.config.generation_kwargs, writer.max_gen_toks)
    for request in task.instances:
        request.arguments = (request.args[0], greedy(settings))
    for request, text in zip(task.instances, writer.generate_until(task.instances), strict=True):
        request.resps = [text]
    task.apply_filters()
    for request in task.instances:
        prompt = writer.prompt(request)
        scores = [
            task.process_results(request.doc, [each]) for each in request.filtered_resps.values()
        ]
        right = (
            any(score["exact_match"] > 0 for score in scores)
            if "exact_match" in scores[0]
            else None
        )
        cut = len(writer.tok_encode(request.args[0])) - len(prompt)
        yield _row(prompt, writer.answers[prompt], writer.tokenizer, cut), right


def _row(prompt: Prompt, answer: Answer, tokenizer: PreTrainedTokenizerBase, cut: int) -> Row:
    return Row(prompt, (*answer.tokens, *answer.stop), len(tokenizer.decode(answer.tokens)), cut)

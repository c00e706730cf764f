"""lm-eval on many variants in one process: the task or group, its requests and their encodings are made once.

The numbers are lm-eval's: its evaluator, filters, metrics and standard errors run on its own HFLM. Only the model of
the HFLM changes between variants. Where the engine can measure several variants in one pass, their log-likelihoods
come from the engine.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import lm_eval.utils
import torch
from lm_eval.api.group import Group
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.models.utils import normalize_gen_kwargs
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lamina.data import prompts
from lamina.data.answers import check_undecided, undecided_document
from lamina.data.encoding import Encoded, EncodingLM
from lamina.data.prompts import PLAIN, Style
from lamina.data.task_groups import TaskOrGroup, advise_single_tasks, list_tasks
from lamina.engine.batches import fitting, logit_positions
from lamina.errors import LaminaError
from lamina.evaluation.together import Together
from lamina.models.boundary import assert_finite
from lamina.models.export.check import check_cache

# lm-eval compiles a task's templates anew for every document; compiling depends on the text of the template alone.
lm_eval.utils.env.from_string = lru_cache(maxsize=1024)(lm_eval.utils.env.from_string)
# It warns that a model object was passed instead of a name, which is the point here.
logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)

_BOOTSTRAP = 100_000
_LARGEST_BATCH = 64
_STAGE = "the evaluation of a task"


class TaskScores(NamedTuple):
    """Rows for table `benchmarks` (metric, value, stderr, n_samples, …) and for `benchmark_samples`."""

    metrics: list[dict[str, Any]]
    samples: list[dict[str, Any]]


class VariantLM(EncodingLM):
    """lm-eval's HFLM with an exchangeable model: `use` puts another variant in place of the last one.

    All variants must share tokenizer, vocabulary and context length, as the variants of one base model do.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
    ) -> None:
        # Of bfloat16 logits too, as the engine does.
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=_LARGEST_BATCH,
            softmax_dtype="float32",
        )
        self._base = model
        self._tokens: dict[int, Encoded] = {}  # of each request, by its identity
        self._encoded: dict[int, list[Encoded]] = {}
        self.cut = set[
            tuple[str, int]
        ]()  # documents, by task and number, whose prompt is longer than the context
        self.use(model, name)

    def use(self, model: PreTrainedModel, name: str, together: Together | None = None) -> None:
        """Evaluate `model`, called `name` in messages, from now on; in one pass with others if `together` can."""
        self._model, self._config, self.name = model, model.config, name
        self._together = together or Together(model, {})
        self._may_write = model is self._base

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """Does the same as HFLM, but encodes a list of requests only once."""
        key = hash(tuple(id(request) for request in requests))
        if key not in self._encoded:
            self._encoded[key] = self.encoded_once(requests)
            sizes = [
                len(context) + len(continuation) for _, context, continuation in self._encoded[key]
            ]
            self._count(requests, [size - self.max_length - 1 for size in sizes])
            self.batch_size_per_gpu = lines(
                max(sizes), self.config.get_text_config(decoder=True).vocab_size
            )
        return self._loglikelihood_tokens(self._encoded[key], disable_tqdm=True)

    def encoded_once(self, requests: list[Instance]) -> list[Encoded]:
        """As `encoded`, but a request that was encoded before is not encoded again."""
        new = [request for request in requests if id(request) not in self._tokens]
        if new:
            self._tokens.update(zip(map(id, new), self.encoded(new), strict=True))
        return [self._tokens[id(request)] for request in requests]

    def undecided(self, task: ConfigurableTask) -> dict[int, str]:
        """The documents of a task that no score decides, by their numbers (`lamina.data.answers`)."""
        if task.config.output_type != "multiple_choice":
            return {}
        rows: dict[int, list[Any]] = {}
        encoded = self.encoded_once(task.instances)
        for instance, tokens in zip(task.instances, encoded, strict=True):
            rows.setdefault(instance.doc_id, []).append(self.fit(*tokens))
        docs = {instance.doc_id: instance.doc for instance in task.instances}
        found = {number: undecided_document(task, docs[number], rows[number]) for number in docs}
        return {number: document for number, document in found.items() if document}

    def _loglikelihood_tokens(
        self, requests: list[Encoded], *args: Any, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        if self._recorded is not None:
            return super()._loglikelihood_tokens(requests)
        rows = [self.fit(*request) for request in requests]
        likelihoods = self._together.likelihoods(self.name, rows, _STAGE)
        if likelihoods is not None:
            return [(each.nats, each.likeliest) for each in likelihoods]
        return self._in_batches(
            lambda: super(VariantLM, self)._loglikelihood_tokens(requests, *args, **kwargs)
        )

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Does the same as HFLM, without the progress bar."""
        key = hash(tuple(id(request) for request in requests))
        if key not in self._encoded:
            self._encoded[key], asked = (
                [],
                [cast(tuple[str, dict[str, Any]], request.args) for request in requests],
            )
            answers = [
                normalize_gen_kwargs(settings, self.max_gen_toks)["max_gen_toks"]
                for _, settings in asked
            ]
            prompts = [len(self.tok_encode(question)) for question, _ in asked]
            self._count(
                requests, [n + m - self.max_length for n, m in zip(prompts, answers, strict=True)]
            )
        return self._in_batches(
            lambda: super(VariantLM, self).generate_until(requests, disable_tqdm=True)
        )

    def _count(self, requests: list[Instance], beyond: list[int]) -> None:
        """Note the documents of requests that have tokens beyond the model's context."""
        long = [request for request, tokens in zip(requests, beyond, strict=True) if tokens > 0]
        self.cut |= {(str(request.task_name), int(request.doc_id or 0)) for request in long}

    def _in_batches(self, answers: Callable[[], Any]) -> Any:
        """HFLM's answers, begun anew in batches of half the size where a GPU has no memory for one.

        HFLM takes the longest requests first, so that the first batch shows whether memory is enough.
        """

        def of(size: int) -> Any:
            self.batch_size_per_gpu = size
            return answers()

        return fitting(of, int(self.batch_size_per_gpu))[0]

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = super()._model_call(inps, *args, **kwargs)
        assert_finite(logits, self.name, _STAGE)
        return logits

    def _model_generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self._may_write:
            check_cache(self._model, self._base, self.name)
            self._may_write = True
        kwargs.setdefault("logits_processor", LogitsProcessorList([_RefuseNaN(self.name)]))
        with likeliest_tokens(self._model):
            return super()._model_generate(*args, **kwargs)


@contextmanager
def likeliest_tokens(model: PreTrainedModel) -> Iterator[None]:
    """While open, generation follows the task alone: nothing of the model's generation_config.json but its tokens.

    Models are published with penalties, bans and beams in that file, which transformers applies to greedy decoding too.
    What is written is then not the likeliest, and two variants are compared under a rule that neither stands for.
    """
    published = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=published.bos_token_id,
        eos_token_id=published.eos_token_id,
        pad_token_id=published.pad_token_id,
    )
    try:
        yield
    finally:
        model.generation_config = published


def lines(longest: int, vocabulary: int) -> int:
    """Requests of at most `longest` tokens in one batch."""
    return max(1, min(_LARGEST_BATCH, logit_positions(vocabulary) // longest))


class _RefuseNaN(LogitsProcessor):
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        assert_finite(scores, self.name, "the generation of an answer")
        return scores


class TaskBenchmark:
    """One lm-eval task or group of tasks, ready to score variant after variant.

    task: an lm-eval task or group with the few-shot number set.
    limit: score the first documents of each task only; None scores all.
    style: how prompts are written.
    lm: what runs the model, by default a VariantLM of it.

    Raises LaminaError if a task runs code that the model writes, a group has no score of its own, or no score decides
    half of the documents.
    """

    def __init__(
        self,
        task: TaskOrGroup,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        limit: int | None = None,
        style: Style = PLAIN,
        lm: VariantLM | None = None,
    ) -> None:
        self.task, self.tasks, self.limit = (
            task,
            {str(each.config.task): each for each in list_tasks(task)},
            limit,
        )
        self.lm = lm or VariantLM(model, tokenizer, "the base model")
        if isinstance(task, Group) and not task.has_aggregation:
            raise LaminaError(
                f"the tasks of '{task.name}' have no metric in common. {advise_single_tasks(task)}."
            )
        for name, each in self.tasks.items():
            if getattr(each, "UNSAFE_CODE", False):
                raise LaminaError(
                    f"task '{name}' runs code that the model writes, which lamina does not. Name another task."
                )
            prompts.build_requests(each, self.lm, style, limit=limit)
            # The evaluator builds the requests of a task each time it is called; these are the same for every variant.
            each.build_all_requests = partial(_reset, each)
        # Documents, by task and number, of which a right choice has the tokens of a wrong one.
        self.undecided = {
            (name, number): document
            for name, each in self.tasks.items()
            for number, document in self.lm.undecided(each).items()
        }
        documents = {
            (name, instance.doc_id)
            for name, each in self.tasks.items()
            for instance in each.instances
        }
        title = task.name if isinstance(task, Group) else task.config.task
        check_undecided(f"task '{title}'", list(self.undecided.values()), len(documents))

    def score(
        self, model: PreTrainedModel, name: str, together: Together | None = None
    ) -> TaskScores:
        """Score one variant, called `name` in messages and in `together`, the variants that are measured in one pass.

        The rows of a group include its tasks and the groups in it; these rows name the group in `part_of`.

        Raises LaminaError if the variant gives NaN.
        """
        self.lm.use(model, name, together)
        groups = [self.task, *self.task.get_all_groups()] if isinstance(self.task, Group) else []
        results: Any = evaluate(
            lm=self.lm,
            task_dict={"tasks": self.tasks, "groups": {group.name: group for group in groups}},
            limit=self.limit,
            bootstrap_iters=_BOOTSTRAP,
        )
        members = {task: [task] for task in self.tasks}
        members |= {
            group.name: [str(task.config.task) for task in list_tasks(group)] for group in groups
        }
        whole, metrics = groups[0].name if groups else None, []
        for task, names in members.items():
            scores = results["results"][task]
            for key, value in scores.items():
                metric, comma, chosen = key.partition(",")
                if not comma or metric.endswith("_stderr") or _number(value) is None:
                    continue
                row = {
                    "task": task,
                    "part_of": whole if task != whole else None,
                    "metric": _metric_name(key),
                    "value": float(value),
                    "stderr": _number(scores.get(f"{metric}_stderr,{chosen}")),
                    "n_samples": _documents(results, task, key),
                    "n_cut": sum(named in names for named, _ in self.lm.cut),
                    "n_undecided": sum(named in names for named, _ in self.undecided),
                    "n_shot": _agreed(results["n-shot"].get(each) for each in names),
                    "higher_is_better": _agreed(
                        results["higher_is_better"][each].get(metric) for each in names
                    ),
                    "task_version": str(results["versions"][task]),
                }
                metrics.append(row)
        return TaskScores(
            metrics, self._group_samples(results) if groups else _samples(results, *self.tasks)
        )

    def _group_samples(self, results: Any) -> list[dict[str, Any]]:
        """Documents of the tasks as documents of the group, so that the mean of a metric is that of the group.

        The numbers of the documents continue from task to task. Where lm-eval gives tasks of all sizes the same
        weight, the values are multiplied by weights that cancel the sizes.
        """
        rows = []
        for aggregate in self.task.aggregate_metric_list:
            offset = 0
            for name, task in self.tasks.items():
                for row in _samples(results, name):
                    metric, _, chosen = row["metric"].partition(",")
                    chosen = chosen or "none"
                    key = f"{metric},{chosen}"
                    if metric != aggregate.metric or chosen not in (
                        aggregate.filter_list or [chosen]
                    ):
                        continue
                    held = [
                        _documents(results, each, key)
                        for each in self.tasks
                        if key in results["results"][each]
                    ]
                    alike = sum(held) / (len(held) * _documents(results, name, key))
                    weight = 1.0 if aggregate.weight_by_size else alike
                    number, value = offset + row["sample"], weight * row["value"]
                    rows.append(
                        row
                        | {"task": self.task.name, "part": name, "sample": number, "value": value}
                    )
                offset += len(task.eval_docs)
        return rows


def _reset(task: ConfigurableTask, **_: Any) -> None:
    for instance in task.instances:
        instance.resps = []
        instance.filtered_resps = {}


def _samples(results: Any, task: str) -> list[dict[str, Any]]:
    return [
        {
            "task": task,
            "sample": sample["doc_id"],
            "metric": _metric_name(f"{name},{sample['filter']}"),
            "value": value,
        }
        for sample in results["samples"][task]
        for name in sample["metrics"]
        if (value := _number(sample[name])) is not None
    ]


def _documents(results: Any, task: str, key: str) -> int:
    """The number of documents behind a score of a task or group."""
    counted = results["n-samples"].get(task)
    return int(counted["effective"] if counted else results["results"][task]["sample_count"][key])


def _agreed(values: Iterable[Any]) -> Any:
    """The one value that all tasks of a group have; None if they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _metric_name(key: str) -> str:
    """lm-eval's `metric,filter`; without the filter where it is empty or "none"."""
    metric, _, chosen = key.partition(",")
    return metric if chosen in ("", "none") else f"{metric},{chosen}"


def _number(value: Any) -> float | None:
    """A number as a float, finite or not; None for lm-eval's "N/A" and for values that are not a single number."""
    if isinstance(value, (bool, int, float)) or hasattr(value, "item"):
        return float(value)
    return None

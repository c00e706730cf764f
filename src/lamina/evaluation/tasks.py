"""Runs lm-eval on many variants in one process, with requests built and encoded only once.

The numbers are lm-eval's: its evaluator, filters, metrics and standard errors run on its own HFLM.
Only the model of the HFLM changes between variants. If the engine can measure several variants in
one pass, their log-likelihoods come from the engine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import lm_eval.utils
import torch
from lm_eval.api.group import Group
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.config.group import AggMetricConfig
from lm_eval.evaluator import evaluate
from lm_eval.result_schema import EvalResults
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
from lamina.engine.batches import logit_positions, shrink_to_memory
from lamina.errors import LaminaError
from lamina.evaluation.together import Together
from lamina.models.boundary import assert_finite
from lamina.models.export.check import check_cache

# lm-eval compiles a task's templates again for every document. The result depends only on the text
# of the template, so it is cached.
lm_eval.utils.env.from_string = lru_cache(maxsize=1024)(lm_eval.utils.env.from_string)

_BOOTSTRAP = 100_000  # resamplings for standard errors that have no formula, lm-eval's default
_LARGEST_BATCH = 64
_STAGE = "the evaluation of a task"


class TaskScores(NamedTuple):
    """The scores of one variant on a task."""

    metrics: list[dict[str, Any]]
    """Rows for table `benchmarks` (metric, value, stderr, n_samples, …)."""
    samples: list[dict[str, Any]]
    """Rows for table `benchmark_samples`."""


class VariantLM(EncodingLM):
    """lm-eval's HFLM with an exchangeable model: `use` puts another variant in its place.

    All variants must share tokenizer, vocabulary and context length, as the variants of one base
    model do.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
    ) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=_LARGEST_BATCH,
            softmax_dtype="float32",  # even for bfloat16 logits, as in the engine
        )
        self._base = model
        self._encoded_requests: dict[int, Encoded] = {}  # by the identity of the request
        # Documents, by task and index, whose prompt is longer than the context.
        self.cut: set[tuple[str, int]] = set()
        self.use(model, name)

    def use(self, model: PreTrainedModel, name: str, together: Together | None = None) -> None:
        """Evaluate `model` from now on.

        name: What messages and `together` call the model.
        together: Models that are measured with it in one pass, if the engine can.
        """
        self._model = model
        self._config = model.config
        self.name = name
        self._together = together or Together(model, {})
        self._can_write = model is self._base

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """As HFLM, but a request is encoded only once."""
        encoded = self.encoded_once(requests)
        lengths = [len(context) + len(continuation) for _, context, continuation in encoded]
        self._note_cut(requests, [length - 1 for length in lengths])
        vocabulary = self.config.get_text_config(decoder=True).vocab_size
        self.batch_size_per_gpu = count_lines(max(lengths), vocabulary)
        return self._loglikelihood_tokens(encoded, disable_tqdm=True)

    def encoded_once(self, requests: list[Instance]) -> list[Encoded]:
        """As `encoded`, but a request that was encoded before is not encoded again."""
        new_requests = [
            request for request in requests if id(request) not in self._encoded_requests
        ]
        if new_requests:
            for request, encoded in zip(new_requests, self.encoded(new_requests), strict=True):
                self._encoded_requests[id(request)] = encoded
        return [self._encoded_requests[id(request)] for request in requests]

    def undecided(self, task: ConfigurableTask) -> dict[int, str]:
        """The documents of a task that no score decides, by index (`lamina.data.answers`)."""
        if task.config.output_type != "multiple_choice":
            return {}
        doc_by_index: dict[int, dict[str, Any]] = {}
        rows_by_index: dict[int, list[Any]] = {}
        encoded_requests = self.encoded_once(task.instances)
        for request, encoded in zip(task.instances, encoded_requests, strict=True):
            doc_by_index[request.doc_id] = request.doc
            rows_by_index.setdefault(request.doc_id, []).append(self.fit(*encoded))
        undecided: dict[int, str] = {}
        for index, doc in doc_by_index.items():
            description = undecided_document(task, doc, rows_by_index[index])
            if description:
                undecided[index] = description
        return undecided

    def _loglikelihood_tokens(
        self, requests: list[Encoded], *args: Any, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        if self._recorded is not None:
            return super()._loglikelihood_tokens(requests)
        rows = [self.fit(*request) for request in requests]
        likelihoods = self._together.likelihoods(self.name, rows, _STAGE)
        if likelihoods is not None:
            return [(likelihood.nats, likelihood.likeliest) for likelihood in likelihoods]
        stock = partial(super()._loglikelihood_tokens, requests, *args, **kwargs)
        return cast(list[tuple[float, bool]], self._run_in_fitting_batches(stock))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """As HFLM, without the progress bar."""
        lengths: list[int] = []
        for request in requests:
            question, settings = cast(tuple[str, dict[str, Any]], request.args)
            n_answer_tokens = self.answer_length(settings)
            lengths.append(len(self.tok_encode(question)) + n_answer_tokens)
        self._note_cut(requests, lengths)
        stock = partial(super().generate_until, requests, disable_tqdm=True)
        return cast(list[str], self._run_in_fitting_batches(stock))

    def _note_cut(self, requests: Sequence[Instance], lengths: Sequence[int]) -> None:
        """Note the documents whose requests have more tokens than the model can read."""
        for request, length in zip(requests, lengths, strict=True):
            if length > self.max_length:
                self.cut.add((str(request.task_name), int(request.doc_id or 0)))

    def _run_in_fitting_batches(self, run: Callable[[], Any]) -> Any:
        """The result of `run`; it restarts with half the batch size if a GPU's memory runs out.

        HFLM takes the longest requests first, so that the first batch shows whether memory is
        enough.
        """

        def run_in_batches(batch_size: int) -> Any:
            self.batch_size_per_gpu = batch_size
            return run()

        result, _ = shrink_to_memory(run_in_batches, int(self.batch_size_per_gpu))
        return result

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = super()._model_call(inps, *args, **kwargs)
        assert_finite(logits, self.name, _STAGE)
        return logits

    def _model_generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self._can_write:
            check_cache(self._model, self._base, self.name)
            self._can_write = True
        kwargs.setdefault("logits_processor", LogitsProcessorList([_NaNRefusal(self.name)]))
        with likeliest_tokens(self._model):
            return super()._model_generate(*args, **kwargs)


@contextmanager
def likeliest_tokens(model: PreTrainedModel) -> Iterator[None]:
    """While open, generation follows the task alone, and not the model's generation_config.json.

    Published models have penalties, banned tokens and beams in that file, which transformers also
    applies to greedy decoding. Then the output is not the likeliest one, and the comparison of two
    variants depends on these rules. Only the special tokens of the file are kept.
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


def count_lines(longest: int, vocabulary: int) -> int:
    """How many requests of at most `longest` tokens fit into one batch."""
    return max(1, min(_LARGEST_BATCH, logit_positions(vocabulary) // longest))


class _NaNRefusal(LogitsProcessor):
    """Stops a generation if its logits are NaN; changes nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        assert_finite(scores, self.name, "the generation of an answer")
        return scores


class TaskBenchmark:
    """One lm-eval task or group of tasks, ready to score variant after variant.

    task: An lm-eval task or group with the few-shot number set.
    limit: Score the first documents of each task only; None scores all.
    style: How prompts are written.
    lm: The lm-eval model that runs the variants, by default a new VariantLM.

    Raises LaminaError if a task runs code that the model writes, if a group has no score of its
    own, or if half of the documents are undecided.
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
        self.task = task
        self.tasks = {str(single.config.task): single for single in list_tasks(task)}
        self.limit = limit
        self.lm = lm or VariantLM(model, tokenizer, "the base model")
        if isinstance(task, Group) and not task.has_aggregation:
            raise LaminaError(
                f"the tasks of '{task.name}' have no metric in common. {advise_single_tasks(task)}."
            )
        for name, single in self.tasks.items():
            if getattr(single, "UNSAFE_CODE", False):
                raise LaminaError(
                    f"task '{name}' runs code that the model writes, which lamina never does. Name "
                    "another task."
                )
            prompts.build_requests(single, self.lm, style, limit=limit)
            # The evaluator builds the requests of a task at each call. They are the same for every
            # variant, so they are kept.
            single.build_all_requests = partial(_reset_requests, single)
        self.undecided = self._find_undecided()

    def _find_undecided(self) -> dict[tuple[str, int], str]:
        """Documents, by task and index, whose right and wrong choices have the same tokens."""
        undecided: dict[tuple[str, int], str] = {}
        documents: set[tuple[str, int]] = set()
        for name, task in self.tasks.items():
            documents.update((name, request.doc_id) for request in task.instances)
            for index, description in self.lm.undecided(task).items():
                undecided[name, index] = description
        title = self.task.name if isinstance(self.task, Group) else self.task.config.task
        check_undecided(f"task '{title}'", list(undecided.values()), len(documents))
        return undecided

    def score(
        self, model: PreTrainedModel, name: str, together: Together | None = None
    ) -> TaskScores:
        """Score one variant.

        The rows of a group include its tasks and the groups in it; these rows name the group in
        `part_of`.

        name: What messages and `together` call the variant.
        together: The variants that are measured in one pass.

        Raises LaminaError if the variant gives NaN.
        """
        results: Any = self.evaluate(model, name, together)
        groups = self._list_groups()
        member_names = {task_name: [task_name] for task_name in self.tasks}
        for group in groups:
            member_names[group.name] = [str(task.config.task) for task in list_tasks(group)]
        metric_rows: list[dict[str, Any]] = []
        for task_or_group, names in member_names.items():
            for key, value in results["results"][task_or_group].items():
                if _is_metric(key) and _as_number(value) is not None:
                    metric_rows.append(self._metric_row(results, task_or_group, names, key))
        if groups:
            return TaskScores(metric_rows, self._group_samples(results))
        (task_name,) = self.tasks
        return TaskScores(metric_rows, _sample_rows(results, task_name))

    def evaluate(
        self, model: PreTrainedModel, name: str, together: Together | None = None
    ) -> EvalResults:
        """The results of one variant from lm-eval's evaluator, with the samples.

        The arguments and the error are those of `score`.
        """
        self.lm.use(model, name, together)
        groups = {group.name: group for group in self._list_groups()}
        results = evaluate(
            lm=self.lm,
            task_dict={"tasks": self.tasks, "groups": groups},
            limit=self.limit,
            bootstrap_iters=_BOOTSTRAP,
        )
        return cast(EvalResults, results)

    def _list_groups(self) -> list[Group]:
        """The group that is measured and the groups in it; none if it is a single task."""
        if not isinstance(self.task, Group):
            return []
        return [self.task, *self.task.get_all_groups()]

    def _metric_row(
        self, results: Any, name: str, member_names: Sequence[str], key: str
    ) -> dict[str, Any]:
        """A row of `benchmarks` for a task or group.

        member_names: The task itself, or the tasks of the group.
        key: lm-eval's `metric,filter`.
        """
        whole = self.task.name if isinstance(self.task, Group) else None
        scores = results["results"][name]
        metric, _, filter_name = key.partition(",")
        higher_is_better = results["higher_is_better"]
        return {
            "task": name,
            "part_of": whole if name != whole else None,
            "metric": _metric_name(key),
            "value": float(scores[key]),
            "stderr": _as_number(scores.get(f"{metric}_stderr,{filter_name}")),
            "n_samples": _count_documents(results, name, key),
            "n_cut": sum(task_name in member_names for task_name, _ in self.lm.cut),
            "n_undecided": sum(task_name in member_names for task_name, _ in self.undecided),
            "n_shot": _agree(results["n-shot"].get(member) for member in member_names),
            "higher_is_better": _agree(
                higher_is_better[member].get(metric) for member in member_names
            ),
            "task_version": str(results["versions"][name]),
        }

    def _group_samples(self, results: Any) -> list[dict[str, Any]]:
        """The documents of the tasks as documents of the group, such that their mean is its metric.

        The indices of the documents continue from task to task.
        """
        rows: list[dict[str, Any]] = []
        for aggregate in self.task.aggregate_metric_list:
            offset = 0
            for name, task in self.tasks.items():
                for row in _sample_rows(results, name):
                    metric, _, filter_name = row["metric"].partition(",")
                    filter_name = filter_name or "none"
                    if not _is_aggregated(aggregate, metric, filter_name):
                        continue
                    weight = 1.0
                    if not aggregate.weight_by_size:
                        weight = self._weigh_task(results, name, f"{metric},{filter_name}")
                    rows.append(
                        row
                        | {
                            "task": self.task.name,
                            "part": name,
                            "sample": offset + row["sample"],
                            "value": weight * row["value"],
                        }
                    )
                offset += len(task.eval_docs)
        return rows

    def _weigh_task(self, results: Any, name: str, key: str) -> float:
        """The weight of a task's documents in a group whose tasks all have the same weight.

        It cancels the size of the task: it is the mean size of the tasks that have the metric,
        divided by the size of this task.
        """
        sizes = [
            _count_documents(results, task_name, key)
            for task_name in self.tasks
            if key in results["results"][task_name]
        ]
        return sum(sizes) / (len(sizes) * _count_documents(results, name, key))


def _is_metric(key: str) -> bool:
    """Whether a key of lm-eval's results is a metric with its filter, and not a standard error."""
    metric, comma, _ = key.partition(",")
    return bool(comma) and not metric.endswith("_stderr")


def _is_aggregated(aggregate: AggMetricConfig, metric: str, filter_name: str) -> bool:
    """Whether an aggregation of a group is over this metric of its tasks."""
    if metric != aggregate.metric:
        return False
    return not aggregate.filter_list or filter_name in aggregate.filter_list


def _reset_requests(task: ConfigurableTask, **_: Any) -> None:
    """Forget the answers to the requests of a task, and keep the requests."""
    for request in task.instances:
        request.resps = []
        request.filtered_resps = {}


def _sample_rows(results: Any, task: str) -> list[dict[str, Any]]:
    """Rows of `benchmark_samples` for one task."""
    rows: list[dict[str, Any]] = []
    for sample in results["samples"][task]:
        for metric in sample["metrics"]:
            value = _as_number(sample[metric])
            if value is None:
                continue
            name = _metric_name(f"{metric},{sample['filter']}")
            rows.append({"task": task, "sample": sample["doc_id"], "metric": name, "value": value})
    return rows


def _count_documents(results: Any, task: str, key: str) -> int:
    """The number of documents behind a score of a task or group."""
    counted: Mapping[str, Any] | None = results["n-samples"].get(task)
    return int(counted["effective"] if counted else results["results"][task]["sample_count"][key])


def _agree(values: Iterable[Any]) -> Any:
    """The one value that all tasks of a group have; None if they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _metric_name(key: str) -> str:
    """lm-eval's `metric,filter`; without the filter if it is empty or "none"."""
    metric, _, filter_name = key.partition(",")
    return metric if filter_name in ("", "none") else f"{metric},{filter_name}"


def _as_number(value: Any) -> float | None:
    """A number as a float, finite or not; None for lm-eval's "N/A" and for anything else."""
    if isinstance(value, (bool, int, float)) or hasattr(value, "item"):
        return float(value)
    return None

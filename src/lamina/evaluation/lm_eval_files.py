"""Writes the files of lm-eval's `--output_path` and `--log_samples`, with its own writer.

`results_DATE.json` has the scores and the configuration of every task. `samples_TASK_DATE.jsonl`
has every question with its prompt, the log-likelihood of each choice or the written answer, and the
score. This module does not evaluate a model (see `lamina.evaluation.tasks`).
"""

import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval.loggers import EvaluationTracker
from lm_eval.result_schema import EvalResults

from lamina.data.prompts import Style
from lamina.errors import LaminaError


def join_results(results_of_tasks: Iterable[EvalResults]) -> dict[str, dict[str, Any]]:
    """Join the results of several runs of lm-eval's evaluator, as if one run had done all tasks."""
    joined: dict[str, dict[str, Any]] = {}
    for results in results_of_tasks:
        for section, value_by_name in results.items():
            assert isinstance(value_by_name, Mapping)  # by task or group
            joined.setdefault(section, {}).update(value_by_name)
    return joined


def write_lm_eval_files(
    results: Mapping[str, Mapping[str, Any]],
    folder: Path,
    model_name: str,
    style: Style,
    chat_template: str | None = None,
) -> None:
    """Write results of lm-eval's evaluator, with their samples, into a folder.

    model_name: The model's name in the files, where lm-eval's `hf` has its argument `pretrained`.
    style: How the prompts were written.
    chat_template: The template of the tokenizer, if the prompts went through it.

    Raises LaminaError if a file could not be written.
    """
    model_arguments = {"pretrained": model_name}
    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    tracker.general_config_tracker.log_experiment_args(
        model_source="hf",
        model_args=model_arguments,
        system_instruction=style.system,
        chat_template=chat_template,
        fewshot_as_multiturn=style.chat_template and style.turns,
    )
    record: dict[str, Any] = {**results}
    samples_by_task = record.pop("samples")
    record["config"] = {"model": "hf", "model_args": model_arguments}
    record["date"] = time.time()
    record["lm_eval_version"] = version("lm_eval")
    record["transformers_version"] = version("transformers")
    tracker.save_results_aggregated(results=record, samples=samples_by_task)
    for task_name, samples in samples_by_task.items():
        tracker.save_results_samples(task_name=task_name, samples=samples)

    # The tracker only logs what it cannot write.
    n_written = len(list(folder.glob("results_*.json"))) + len(list(folder.glob("samples_*.jsonl")))
    if n_written != 1 + len(samples_by_task):
        raise LaminaError(f"lm-eval could not write its files into {folder}. Is the disk full?")

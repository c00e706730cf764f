"""Removes each unit in turn, and lets the model write the answers of a calibration.

A candidate is actually cut, as for a benchmark, so it writes what its export would write.
Candidates share nothing but the weights: the pass costs one generation run per unit. The last sets
of a portfolio are judged in the same way.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.task import ConfigurableTask
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data.calibrations import Sample
from lamina.data.encoding import open_encoder
from lamina.data.prepare import draw_tasks
from lamina.data.prompts import Style
from lamina.data.task_files import check_exact_match, check_questions
from lamina.engine.candidates import CURRENT, Candidate
from lamina.evaluation.generation import WritingLM, answer_task
from lamina.models.boundary import NotFiniteError
from lamina.models.load import load_tokenizer
from lamina.models.materialise import materialise
from lamina.models.units import parse_unit
from lamina.models.workload import done
from lamina.options.benchmarks import Generate
from lamina.options.calibrations import Calibration
from lamina.store.unfinished import Progress


class Questions(NamedTuple):
    """The questions of a calibration with generated answers."""

    tasks: Sequence[ConfigurableTask]
    """Tasks with their requests, in the order of the calibration's samples."""
    tokenizer: PreTrainedTokenizerBase

    def judge_candidates(
        self,
        model: PreTrainedModel,
        sample_indices: Collection[int],
        candidates: Sequence[Candidate],
    ) -> np.ndarray:
        """Whether candidates answer samples correctly, (candidates, samples), 1 or 0.

        A candidate whose logits are NaN on a question answers none of them correctly.

        sample_indices: The calibration's samples that are answered; the results are in ascending
            order of these indices.
        """
        writer = WritingLM(model, self.tokenizer, Generate())
        n_samples = len(set(sample_indices))
        right_answers = np.zeros((len(candidates), n_samples))
        for number, candidate in enumerate(candidates):
            units = sorted(candidate.edits, key=parse_unit)
            plan = {"units": units} if units else None
            variant = materialise(model, plan, candidate.patches or None)
            writer.use(variant, _describe(units))
            with suppress(NotFiniteError):
                right_answers[number] = _answer_questions(writer, self, sample_indices)
        return right_answers


def draw_questions(
    name: str,
    entry: Calibration,
    samples: Sequence[Sample],
    model: PreTrainedModel,
    manifest: dict[str, Any],
    root: Path,
    option: str = "metric: exact_match",
) -> Questions:
    """The questions of calibration `name`, one for each of its samples, in their order.

    samples: The calibration's samples. With `keep: right`, these are fewer than were drawn.
    manifest: The model's manifest.
    option: The selector's key that asks for written answers, for messages.

    Raises LaminaError if the calibration has no written answers, or exact match cannot judge them.
    """
    where = f"calibrations.{name}"
    check_questions(where, entry, option)
    tokenizer = load_tokenizer(manifest)
    encoder = open_encoder(model, tokenizer)
    kept = {sample.document for sample in samples}
    tasks: list[ConfigurableTask] = []
    for task, drawn in draw_tasks(name, entry, encoder, Style.of(manifest), root):
        check_exact_match(
            where, task.config.task, task.config.output_type, task.aggregation(), option
        )
        task.instances[:] = [
            request
            for request, sample in zip(task.instances, drawn, strict=True)
            if sample.document in kept
        ]
        tasks.append(task)
    return Questions(tasks, tokenizer)


def sweep_rows(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str],
    questions: Questions,
    with_current: bool = True,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` without its keys: column `written_correct`, per unit and sample.

    A removal whose logits are NaN on a question answers none of them correctly.

    removed: The units that were removed before.
    questions: The questions of the samples.
    with_current: Whether the model before the removals has rows too.
    progress: Stores what is measured so far, so that a new process can continue a killed one's
        work.

    Raises LaminaError if the model before the removals gives NaN.
    """
    writer = WritingLM(model, questions.tokenizer, Generate())
    right_by_unit: dict[str, list[bool]] = {}
    saved = progress.load() if progress else None
    if saved:
        _, facts = saved
        right_by_unit = facts["right"]
        done.earlier += facts["layer_tokens"]

    names = [CURRENT, *units] if with_current else list(units)
    for name in names:
        if name in right_by_unit:
            continue
        right_by_unit[name] = _judge_answers(writer, model, removed, name, questions)
        if progress and progress.is_due():
            progress.save({}, {"right": right_by_unit, "layer_tokens": done.total})

    rows: list[dict[str, Any]] = []
    for name in names:
        for sample, is_right in zip(samples, right_by_unit[name], strict=True):
            rows.append({"unit": name, "sample": sample.index, "written_correct": is_right})
    return rows


def _judge_answers(
    writer: WritingLM,
    model: PreTrainedModel,
    removed: Sequence[str],
    name: str,
    questions: Questions,
) -> list[bool]:
    """Whether each answer without the unit `name` is right; it may be CURRENT."""
    lacking = list(removed) if name == CURRENT else [*removed, name]
    writer.use(materialise(model, {"units": lacking} if lacking else None), _describe(lacking))
    try:
        return _answer_questions(writer, questions)
    except NotFiniteError:
        if name == CURRENT:
            raise
        return [False] * sum(len(task.instances) for task in questions.tasks)


def _describe(units: Sequence[str]) -> str:
    return f"the model without {', '.join(units)}" if units else "the base model"


def _answer_questions(
    writer: WritingLM, questions: Questions, sample_indices: Collection[int] | None = None
) -> list[bool]:
    """Whether the answers of the writer's model to these samples, or to all, are right."""
    is_right: list[bool] = []
    n_before = 0
    for task in questions.tasks:
        asked = [
            request
            for index, request in enumerate(task.instances, n_before)
            if sample_indices is None or index in sample_indices
        ]
        is_right += [bool(answer.is_right) for answer in answer_task(task, writer, asked)]
        n_before += len(task.instances)
    return is_right

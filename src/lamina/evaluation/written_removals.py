"""A metric's pass: without each unit, the model writes the answers of a calibration with its cache.

A candidate is the model that is really cut, as for a benchmark, so it writes what its export would
write. Candidates share nothing but the weights: the pass costs one generation for each unit.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval.api.task import ConfigurableTask
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data.calibrations import Sample
from lamina.data.encoding import open_encoder
from lamina.data.prepare import draw_tasks
from lamina.data.prompts import Style
from lamina.data.task_files import check_exact_match, check_questions
from lamina.engine.candidates import CURRENT
from lamina.evaluation.generation import WritingLM, answer_task
from lamina.models.boundary import NotFiniteError
from lamina.models.load import load_tokenizer
from lamina.models.materialise import materialise
from lamina.models.workload import done
from lamina.options.benchmarks import Generate
from lamina.options.calibrations import Calibration
from lamina.store.unfinished import Progress


class Questions(NamedTuple):
    """The questions of a calibration whose answers are written."""

    tasks: Sequence[ConfigurableTask]
    """With their requests, which are in the order of the calibration's samples."""
    tokenizer: PreTrainedTokenizerBase


def draw_questions(
    name: str,
    entry: Calibration,
    model: PreTrainedModel,
    manifest: dict[str, Any],
    root: Path,
) -> Questions:
    """The questions of calibration `name`, as its samples were drawn.

    manifest: That of the model.

    Raises LaminaError if it has no written answers, or exact match cannot judge them.
    """
    check_questions(f"calibrations.{name}", entry)
    tokenizer = load_tokenizer(manifest)
    encoder = open_encoder(model, tokenizer)
    tasks = [task for task, _ in draw_tasks(name, entry, encoder, Style.of(manifest), root)]
    for task in tasks:
        check_exact_match(
            f"calibrations.{name}", task.config.task, task.config.output_type, task.aggregation()
        )
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

    A removal whose logits are NaN on a question answers none of them right.

    removed: The units that were removed before.
    questions: Those of the samples.
    with_current: Whether the model before the removals has rows too.
    progress: Keeps what is measured so far, for a process that continues the work of a killed one.

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
    variant = materialise(model, {"units": lacking} if lacking else None)
    writer.use(variant, f"the model without {', '.join(lacking)}" if lacking else "the base model")
    try:
        answers = [row for task in questions.tasks for row in answer_task(task, writer)]
    except NotFiniteError:
        if name == CURRENT:
            raise
        return [False] * sum(len(task.instances) for task in questions.tasks)
    return [bool(answer.is_right) for answer in answers]

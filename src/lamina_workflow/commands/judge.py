"""`lamina judge`: new questions, measured once on a variant and on its base model.

A study's test questions choose between its variants, so the best variant looks better on them than
it is. The new questions have not been used to choose anything.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from lamina import paths
from lamina.data.files import read_questions
from lamina.data.lm_tasks import load_task, test_documents
from lamina.data.overlap import (
    count_shared_documents,
    document_hash,
    hash_word_runs,
    read_overlap_documents,
)
from lamina.data.prompts import Style
from lamina.errors import LaminaError
from lamina.evaluation.assembly import read_parts
from lamina.evaluation.measuring import Unfinished, measure_variants
from lamina.evaluation.tasks import TaskBenchmark
from lamina.loading import find_by_name
from lamina.models.load import load_model, load_tokenizer
from lamina.store import parquet
from lamina.store.unfinished import digest_settings
from lamina.variant import Variant
from lamina_workflow.config.configuration import Report
from lamina_workflow.config.text import read_configuration
from lamina_workflow.report.judgements import (
    Judgement,
    compare_scores,
    hash_variant,
    read_judgements,
)

TASK = "judged"
METRICS = ("acc_norm", "acc")  # a task's main metric is the first that it has, as in the report


def judge_variant(name: str, questions: Path, results: Path) -> tuple[Judgement, bool]:
    """Measure the questions of a file, or read the earlier measurement of this file.

    Returns the judgement, and whether it was measured now.

    name: The name of a variant whose files are under `results`.

    Raises LaminaError if there is no such variant, the file holds no questions, or the study has
    seen some of them.
    """
    named = find_by_name(name, results)
    variant = named.variant
    if variant is None or variant.is_base:
        raise LaminaError(f"'{name}' is the base model, with which a variant is compared.")
    read_questions(questions, "QUESTIONS")
    task = load_task(TASK, Path.cwd(), choices=str(questions))
    _check_unseen(questions, test_documents(task), variant.model, results)

    base_variant = Variant.base(variant.model)
    files_by_variant = {
        measured: paths.variant_files(measured, results) for measured in (base_variant, variant)
    }
    # Covers the questions and the variant's files, which another run may replace.
    digest = digest_settings(named.manifest, questions, *files_by_variant[variant].listed())[:16]
    file = results / "judged" / str(variant) / f"{digest}.json"
    if file.exists():
        (judgement,) = read_judgements([str(file)], results)
        return judgement, False

    base = load_model(named.manifest)
    style = Style.of(named.manifest)
    score = TaskBenchmark(task, base, load_tokenizer(named.manifest), style=style).score
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Unfinished(f"{file}.unfinished", digest)
    variants = [
        (measured, read_parts(measured, files)) for measured, files in files_by_variant.items()
    ]
    _, sample_rows = measure_variants(base, variants, score, unfinished)

    measured_metrics = {row["metric"] for row in sample_rows}
    metric = next(metric for metric in METRICS if metric in measured_metrics)
    answers: dict[Variant, list[float]] = {base_variant: [], variant: []}
    for row in sample_rows:
        if row["metric"] == metric:
            answers[Variant.of(row)].append(row["value"])
    chances = [1 / len(choices) for _, choices in test_documents(task)]
    judgement = Judgement(
        questions.name,
        str(variant),
        hash_variant(str(variant), results),
        metric,
        answers[base_variant],
        answers[variant],
        fmean(chances),
    )
    parquet.write_json(file, judgement._asdict())
    unfinished.remove()
    return judgement, True


def _check_unseen(
    questions: Path, task_documents: Sequence[tuple[str, list[str]]], model: str, results: Path
) -> None:
    """Refuse questions with which the study has made choices.

    Raises LaminaError; its message gives their number and the file that has them.
    """
    asked = [(document_hash(*document), hash_word_runs(*document)) for document in task_documents]
    use_by_file: dict[Path, str] = {}
    for file in sorted((results / "calibrations" / model).glob("*.parquet")):
        use_by_file[file] = "layers and repairs"
    for file in sorted((results / "tasks").glob("*.parquet")):
        use_by_file[file] = "between its variants"
    for file, use in use_by_file.items():
        shared = count_shared_documents(asked, read_overlap_documents(file))
        if shared.equal or shared.is_too_near(len(asked)):
            raise LaminaError(
                f"{questions}: {shared.near} of its {len(asked)} questions are in {file}, or nearly "
                f"so, and by these the study chose {use}: a score on them says nothing new. Take "
                "them out, or give other questions."
            )


def read_keep(configuration: Path | None) -> float:
    """The share of the base model's score that a configuration requires."""
    written = read_configuration(configuration) if configuration is not None else {}
    return Report.model_validate(written.get("report") or {}).keep


def describe_judgement(judgement: Judgement, is_new: bool, keep: float) -> list[str]:
    """Both scores with their 95 % intervals, the paired difference, and whether enough is kept.

    keep: The required share of the base model's score.
    """
    scores = compare_scores(judgement, keep)
    lines = [
        f"{scores.n_samples} questions, {judgement.metric}, 95 % intervals",
        f"base model   {scores.base}",
        f"variant      {scores.pruned}   {judgement.variant}",
        f"difference   {scores.difference}",
        f"keeps        {scores.kept}",
    ]
    if is_new:
        lines.append("The next `lamina run` adds this to the report.")
    else:
        lines.append("These questions were measured before; this is the earlier result.")
    return lines

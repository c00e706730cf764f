"""Groups of lm-eval tasks are scored as lm-eval scores them, and drawn from across their tasks."""

import json
import random
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.tasks import TaskManager

from lamina.data import lm_tasks, task_files
from lamina.data.overlap import document_hash
from lamina.data.prepare import prepare_calibration
from lamina.errors import LaminaError
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.manifest import describe_model
from lamina.models.materialise import materialise
from lamina.options.calibrations import Calibration
from lamina_workflow.report import answers, database
from tests.data.test_calibrations import ENTRY, REFERENCE
from tests.data.test_task_files import TASK
from tests.given import tiny
from tests.given.planted_tables import BASE_KEY, variant_key
from tests.given.plausible_tables import write_tables
from tests.given.tasks import evaluate_with_lm_eval

N_TEST_BY_SUBJECT = {"physics": 5, "biology": 12, "history": 23}
AGGREGATES = [
    {"metric": "acc", "weight_by_size": True},
    {"metric": "acc_norm", "weight_by_size": False},
]
GROUPS = [
    {
        "group": "exam_sciences",
        "task": ["exam_physics", "exam_biology"],
        "aggregate_metric_list": AGGREGATES,
    },
    {
        "group": "exam",
        "task": ["exam_sciences", "exam_history"],
        "aggregate_metric_list": AGGREGATES,
    },
    {"group": "exam_bare", "task": ["exam_physics", "exam_history"]},
]


def write_exam(root: Path, words: list[str]) -> None:
    """Three subjects with test and validation documents; the group `exam` has a group inside it."""
    generator = random.Random(0)
    task_folder = root / "workflow/tasks"
    task_folder.mkdir(parents=True)
    for subject, n_test in N_TEST_BY_SUBJECT.items():
        write_documents(root / f"{subject}_validation.jsonl", 4 * n_test, words, generator)
        write_documents(root / f"{subject}_test.jsonl", n_test, words, generator)
        data_files = {split: f"{subject}_{split}.jsonl" for split in ("validation", "test")}
        task = TASK | {
            "task": f"exam_{subject}",
            "tag": "exam_tag",
            "doc_to_text": "{{q}}",
            "metadata": {"version": 1},
            "dataset_kwargs": {"data_files": data_files},
            "metric_list": [
                {"metric": "acc", "higher_is_better": True},
                {"metric": "acc_norm", "higher_is_better": True},
            ],
        }
        (task_folder / f"exam_{subject}.yaml").write_text(yaml.safe_dump(task))
    for group in GROUPS:
        text = yaml.safe_dump(group | {"metadata": {"version": 3}})
        (task_folder / f"{group['group']}.yaml").write_text(text)


def write_documents(
    file: Path, n_documents: int, words: list[str], generator: random.Random
) -> None:
    """Questions that begin with the first letter of their subject."""
    lines = []
    for _ in range(n_documents):
        question = f"{file.name[0]} {' '.join(generator.choices(words, k=6))}"
        choices = generator.sample(words, 4)
        document = {"q": question, "choices": choices, "gold": generator.randrange(4)}
        lines.append(json.dumps(document))
    file.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def exam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exam")
    write_exam(root, tiny.WORDS)
    return root


def lm_eval_results(model: Any, task: str, root: Path, limit: int | None = None) -> dict[str, Any]:
    manager = TaskManager(include_path=str(root / "workflow/tasks"), include_defaults=False)
    with chdir(root):
        return evaluate_with_lm_eval(model, task, limit, task_manager=manager)["results"]


@pytest.mark.parametrize(("limit", "removed_units"), [(None, ["1"]), (8, ["2"])])
def test_a_group_and_its_tasks_score_as_lm_eval_scores_them(
    exam: Path, limit: int | None, removed_units: list[str]
) -> None:
    base = tiny.model()
    variant = materialise(base, {"units": removed_units})

    benchmark = TaskBenchmark(lm_tasks.load_task("exam", exam), base, tiny.tokenizer(), limit)
    scores = benchmark.score(variant, "x")

    expected = lm_eval_results(variant, "exam", exam, limit)
    assert {row["task"] for row in scores.metrics} == set(expected)
    assert {row["metric"] for row in scores.metrics} == {"acc", "acc_norm"}
    for row in scores.metrics:
        task = row["task"]
        metric = row["metric"]
        assert row["value"] == expected[task][f"{metric},none"]
        assert row["stderr"] == expected[task][f"{metric}_stderr,none"]
        assert row["n_samples"] == expected[task]["sample_len"]
        assert row["part_of"] == (None if task == "exam" else "exam")
        assert row["n_shot"] == 0
        assert row["higher_is_better"] is True


@pytest.mark.parametrize("limit", [None, 8])
def test_the_score_of_a_group_is_the_mean_of_its_documents(exam: Path, limit: int | None) -> None:
    model = tiny.model()

    benchmark = TaskBenchmark(lm_tasks.load_task("exam", exam), model, tiny.tokenizer(), limit)
    scores = benchmark.score(model, "x")

    n_documents = sum(min(limit or n_test, n_test) for n_test in N_TEST_BY_SUBJECT.values())
    assert {sample["task"] for sample in scores.samples} == {"exam"}
    group_rows = [row for row in scores.metrics if row["task"] == "exam"]
    assert len(group_rows) == 2
    for row in group_rows:
        documents = [sample for sample in scores.samples if sample["metric"] == row["metric"]]
        values = [document["value"] for document in documents]
        assert sum(values) / len(values) == pytest.approx(row["value"])
        assert len(documents) == n_documents
        assert len({document["sample"] for document in documents}) == n_documents


@pytest.mark.parametrize(
    ("name", "subjects"),
    [("exam_tag", list(N_TEST_BY_SUBJECT)), ("exam_bare", ["physics", "history"])],
)
def test_a_tag_and_a_group_without_a_score_get_the_mean_over_documents(
    exam: Path, name: str, subjects: list[str]
) -> None:
    model = tiny.model()

    benchmark = TaskBenchmark(lm_tasks.load_task(name, exam), model, tiny.tokenizer())
    rows = benchmark.score(model, "x").metrics

    expected = lm_eval_results(model, name, exam)
    n_documents = 0
    n_correct = 0.0
    for subject in subjects:
        n_documents += N_TEST_BY_SUBJECT[subject]
        n_correct += N_TEST_BY_SUBJECT[subject] * expected[f"exam_{subject}"]["acc,none"]
    (group_row,) = (row for row in rows if row["task"] == name and row["metric"] == "acc")
    assert group_row["value"] == pytest.approx(n_correct / n_documents)
    assert group_row["n_samples"] == n_documents
    assert group_row["part_of"] is None


@pytest.fixture(scope="module")
def reference_exam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exam in words that the reference model's tokenizer knows."""
    root = tmp_path_factory.mktemp("reference-exam")
    first_line = (REFERENCE / "data/recall_train.jsonl").read_text().splitlines()[0]
    words = set(json.loads(first_line)["query"].split())
    write_exam(root, sorted(words))
    return root


def calibrate(root: Path, **changes: Any) -> Any:
    """A calibration on 40 of the 160 validation documents of the exam, unless changed."""
    manifest = describe_model("reference", ENTRY, REFERENCE)
    options = {"task": "exam", "split": "validation", "limit": 40, "seed": 0} | changes
    return prepare_calibration("exam", Calibration.from_options(options), manifest, root)


def test_a_calibration_draws_from_every_task_of_a_group_by_its_size(reference_exam: Path) -> None:
    subject_by_document = {}
    for subject in N_TEST_BY_SUBJECT:
        for line in (reference_exam / f"{subject}_validation.jsonl").read_text().splitlines():
            document = json.loads(line)
            document_id = document_hash(document["q"], document["choices"])
            subject_by_document[document_id] = subject

    calibration = calibrate(reference_exam)

    drawn_subjects = [subject_by_document[sample.document] for sample in calibration.samples]
    for subject, n_test in N_TEST_BY_SUBJECT.items():
        assert drawn_subjects.count(subject) == n_test  # a quarter of the validation documents
    assert [sample.index for sample in calibration.samples] == list(range(40))
    assert calibration.facts["source"] == "exam"
    assert calibration.facts["chance_accuracy"] == 0.25


def test_the_seed_decides_what_a_calibration_draws(reference_exam: Path) -> None:
    assert calibrate(reference_exam) == calibrate(reference_exam)
    assert calibrate(reference_exam) != calibrate(reference_exam, seed=1)


def test_no_test_document_of_a_group_is_in_a_calibration_on_another_split(
    reference_exam: Path,
) -> None:
    calibration = calibrate(reference_exam)

    tested = lm_tasks.test_documents(lm_tasks.load_task("exam", reference_exam), limit=10)

    assert len(tested) == 5 + 10 + 10
    calibrated = {sample.document for sample in calibration.samples}
    assert not calibrated & {document_hash(*document) for document in tested}


def test_a_mixture_takes_its_fraction_of_a_group(reference_exam: Path) -> None:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    options = {"tasks": ["exam"], "fraction": 0.5, "split": "validation"}

    mixture = prepare_calibration(
        "mixed", Calibration.from_options(options), manifest, reference_exam
    )

    assert len(mixture.samples) == 160 / 2


def test_more_samples_than_a_group_has_are_refused(reference_exam: Path) -> None:
    message = "calibrations.exam.limit: 161 samples are asked for, but 'exam' has only 160"
    with pytest.raises(LaminaError, match=message):
        calibrate(reference_exam, limit=161)


def test_where_only_a_task_will_do_a_group_is_refused_with_its_tasks(exam: Path) -> None:
    message = "'exam' is a group.*one by one: exam_physics, exam_biology, exam_history"
    with pytest.raises(LaminaError, match=message):
        lm_tasks.task_object("exam", exam)


def test_editing_a_task_of_a_local_group_makes_its_readers_stale(
    exam: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(exam)

    files = set(task_files.list_task_files("exam"))

    for name in ("exam", "exam_sciences", "exam_physics"):
        assert f"workflow/tasks/{name}.yaml" in files
    assert {"history_validation.jsonl", "physics_test.jsonl"} <= files


def test_means_over_tasks_count_a_group_once(tmp_path: Path) -> None:
    """Also where a task of the group is benchmarked on its own, with another value."""
    scores = [("g", None, 0.8), ("a", "g", 0.4), ("b", "g", 0.9), ("a", None, 0.6)]
    facts = {"metric": "acc", "stderr": 0.1, "n_samples": 9, "higher_is_better": True}
    benchmarks = []
    for key, scale in ((BASE_KEY, 1.0), (variant_key("c"), 0.5)):
        for task, group, value in scores:
            score = {"task": task, "part_of": group, "value": value * scale}
            benchmarks.append(key | facts | score)
    calibration = {
        "model": "m",
        "calibration": "c",
        "kind": "choices",
        "chance_accuracy": 0.25,
        "source": "g",
    }
    files = write_tables(tmp_path, benchmarks=benchmarks, calibrations=[calibration])
    connection = database.connect_views(files)

    (variant,) = answers.query_rows(connection, "FROM variants WHERE removed = 1")
    compared = answers.query_rows(
        connection, "FROM against_base WHERE removed = 1 ORDER BY task, part_of"
    )

    assert variant["n_tasks"] == 2
    assert variant["own_tasks"] == "g"
    assert variant["own_value"] == pytest.approx(0.4)
    assert [(row["task"], row["part_of"], row["base_value"]) for row in compared] == [
        ("a", "g", 0.4),
        ("a", None, 0.6),
        ("b", "g", 0.9),
        ("g", None, 0.8),
    ]

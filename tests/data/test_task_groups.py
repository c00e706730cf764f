"""Groups of lm-eval tasks: scored as lm-eval scores them, and drawn from across all of their tasks."""

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
from tests.given.plausible_tables import write_tables
from tests.given.tasks import evaluate_with_lm_eval

ROOT = Path(__file__).parents[2]
SIZES = {"physics": 5, "biology": 12, "history": 23}


def write_group(root: Path, words: list[str]) -> None:
    """Three subjects with a split to test and one to calibrate on, two of them in a group inside the group `exam`."""
    draw, tasks = random.Random(0), root / "workflow/tasks"
    tasks.mkdir(parents=True)
    for subject, size in SIZES.items():
        for split in ("validation", "test"):
            lines = []
            for _ in range(size if split == "test" else 4 * size):
                asked, choices = (
                    f"{subject[0]} {' '.join(draw.choices(words, k=6))}",
                    draw.sample(words, 4),
                )
                lines.append({"q": asked, "choices": choices, "gold": draw.randrange(4)})
            (root / f"{subject}_{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        task = TASK | {
            **{
                "task": f"exam_{subject}",
                "tag": "exam_tag",
                "doc_to_text": "{{q}}",
                "metadata": {"version": 1},
            },
            "dataset_kwargs": {
                "data_files": {s: f"{subject}_{s}.jsonl" for s in ("validation", "test")}
            },
            "metric_list": [
                {"metric": metric, "higher_is_better": True} for metric in ("acc", "acc_norm")
            ],
        }
        (tasks / f"exam_{subject}.yaml").write_text(yaml.safe_dump(task))
    aggregate = [
        {"metric": "acc", "weight_by_size": True},
        {"metric": "acc_norm", "weight_by_size": False},
    ]
    sciences = {
        "group": "exam_sciences",
        "task": ["exam_physics", "exam_biology"],
        "aggregate_metric_list": aggregate,
    }
    whole = {
        "group": "exam",
        "task": ["exam_sciences", "exam_history"],
        "aggregate_metric_list": aggregate,
    }
    bare = {"group": "exam_bare", "task": ["exam_physics", "exam_history"]}
    for group in (sciences, whole, bare):
        (tasks / f"{group['group']}.yaml").write_text(
            yaml.safe_dump(group | {"metadata": {"version": 3}})
        )


@pytest.fixture(scope="module")
def exam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exam")
    write_group(root, tiny.WORDS)
    return root


def of_stock(model: Any, name: str, root: Path, limit: int | None = None) -> dict[str, Any]:
    manager = TaskManager(include_path=str(root / "workflow/tasks"), include_defaults=False)
    with chdir(root):
        return evaluate_with_lm_eval(model, name, limit, task_manager=manager)["results"]


@pytest.mark.parametrize(("limit", "removed"), [(None, ["1"]), (8, ["2"])])
def test_a_group_and_its_tasks_score_as_lm_eval_scores_them(
    exam: Path, limit: int | None, removed: list[str]
) -> None:
    base = tiny.model()
    model = materialise(base, {"units": removed})
    benchmark = TaskBenchmark(lm_tasks.load_task("exam", exam), base, tiny.tokenizer(), limit)
    ours, theirs = benchmark.score(model, "x"), of_stock(model, "exam", exam, limit)
    assert {row["task"] for row in ours.metrics} == set(theirs)
    assert {row["metric"] for row in ours.metrics} == {"acc", "acc_norm"}
    for row in ours.metrics:
        task, metric = row["task"], row["metric"]
        assert row["value"] == theirs[task][f"{metric},none"]
        assert row["stderr"] == theirs[task][f"{metric}_stderr,none"]
        assert row["n_samples"] == theirs[task]["sample_len"]
        assert row["part_of"] == (None if task == "exam" else "exam")
        assert (row["n_shot"], row["higher_is_better"]) == (0, True)
    whole = {row["metric"]: row["value"] for row in ours.metrics if row["task"] == "exam"}
    for metric, value in whole.items():
        mine = [sample for sample in ours.samples if sample["metric"] == metric]
        assert sum(sample["value"] for sample in mine) / len(mine) == pytest.approx(value)
        assert len(mine) == sum(min(limit or size, size) for size in SIZES.values())
        assert len({sample["sample"] for sample in mine}) == len(mine)
    assert {sample["task"] for sample in ours.samples} == {"exam"}


def test_a_tag_and_a_group_without_a_score_get_the_mean_over_documents(exam: Path) -> None:
    model = tiny.model()
    for name, subjects in (("exam_tag", tuple(SIZES)), ("exam_bare", ("physics", "history"))):
        rows = (
            TaskBenchmark(lm_tasks.load_task(name, exam), model, tiny.tokenizer())
            .score(model, "x")
            .metrics
        )
        theirs = of_stock(model, name, exam)
        right = sum(SIZES[each] * theirs[f"exam_{each}"]["acc,none"] for each in subjects)
        (own,) = (row for row in rows if row["task"] == name and row["metric"] == "acc")
        assert own["value"] == pytest.approx(right / sum(SIZES[each] for each in subjects))
        assert own["n_samples"] == sum(SIZES[each] for each in subjects) and own["part_of"] is None


def test_a_calibration_draws_from_every_task_of_a_group_by_its_size(tmp_path: Path) -> None:
    words = json.loads((REFERENCE / "data/recall_train.jsonl").read_text().splitlines()[0])[
        "query"
    ].split()
    write_group(tmp_path, sorted(set(words)))
    manifest = describe_model("reference", ENTRY, REFERENCE)
    entry = {"task": "exam", "split": "validation", "limit": 40, "seed": 0}
    first, again, other = (
        prepare_calibration(
            "exam", Calibration.from_options(entry | {"seed": seed}), manifest, tmp_path
        )
        for seed in (0, 0, 1)
    )
    assert first == again != other
    of = {}
    for subject in SIZES:
        lines = map(json.loads, (tmp_path / f"{subject}_validation.jsonl").read_text().splitlines())
        of |= {document_hash(line["q"], line["choices"]): subject for line in lines}
    drawn = [of[sample.document] for sample in first.samples]
    assert {subject: drawn.count(subject) for subject in SIZES} == SIZES  # 40 of 160
    assert [sample.index for sample in first.samples] == list(range(40))
    assert first.facts["source"] == "exam" and first.facts["chance_accuracy"] == 0.25
    tested = lm_tasks.test_documents(lm_tasks.load_task("exam", tmp_path), limit=10)
    assert len(tested) == 5 + 10 + 10 and not {document_hash(*asked) for asked in tested} & {
        sample.document for sample in first.samples
    }
    half = Calibration.from_options({"tasks": ["exam"], "fraction": 0.5, "split": "validation"})
    mixed = prepare_calibration("mixed", half, manifest, tmp_path)
    assert len(mixed.samples) == 2 * 40
    with pytest.raises(
        LaminaError, match="calibrations.exam.limit: 161 samples are asked for, and 'exam' has 160"
    ):
        prepare_calibration(
            "exam", Calibration.from_options(entry | {"limit": 161}), manifest, tmp_path
        )


def test_where_only_a_task_will_do_a_group_is_refused_with_its_tasks(exam: Path) -> None:
    with pytest.raises(
        LaminaError, match="'exam' is a group.*one by one: exam_physics, exam_biology, exam_history"
    ):
        lm_tasks.task_object("exam", exam)


def test_editing_a_task_of_a_local_group_makes_its_readers_stale(
    exam: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(exam)
    found = set(task_files.list_task_files("exam"))
    assert found >= {
        f"workflow/tasks/{name}.yaml" for name in ("exam", "exam_sciences", "exam_physics")
    }
    assert {"history_validation.jsonl", "physics_test.jsonl"} <= found


def test_means_over_tasks_count_a_group_once(tmp_path: Path) -> None:
    """Also where a task of the group is benchmarked on its own, with another value."""
    base = dict(
        model="m", calibration="none", selector="none", removed=0, repair="none", healing="none"
    )
    cut = dict(base, calibration="c", selector="s", removed=1)
    row = dict(metric="acc", stderr=0.1, n_samples=9, higher_is_better=True)
    rows = [
        variant | row | dict(task=task, part_of=part_of, value=value * scale)
        for variant, scale in ((base, 1.0), (cut, 0.5))
        for task, part_of, value in (
            ("g", None, 0.8),
            ("a", "g", 0.4),
            ("b", "g", 0.9),
            ("a", None, 0.6),
        )
    ]
    source = dict(model="m", calibration="c", kind="choices", chance_accuracy=0.25, source="g")
    files = write_tables(tmp_path, benchmarks=rows, calibrations=[source])
    connection = database.connect_views(ROOT / "sql/views.sql", files)
    (variant,) = answers.query_rows(connection, "FROM variants WHERE removed = 1")
    assert (variant["n_tasks"], variant["own_tasks"], variant["own_value"]) == (
        2,
        "g",
        pytest.approx(0.4),
    )
    parts = answers.query_rows(
        connection, "FROM against_base WHERE removed = 1 ORDER BY task, part_of"
    )
    assert [(p["task"], p["part_of"], p["base_value"]) for p in parts] == [
        ("a", "g", 0.4),
        ("a", None, 0.6),
        ("b", "g", 0.9),
        ("g", None, 0.8),
    ]

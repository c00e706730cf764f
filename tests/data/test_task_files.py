"""Python that task files name runs only where it is trusted, and all files behind a task are known."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.data import lm_tasks, task_files
from lamina.errors import LaminaError
from lamina_workflow.checks.load import load_configuration
from tests.given.configurations import minimal_config, set_key, write_model_and_data

BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join(9 * [f'*a{n}'])}]\n" for n in range(9)
)
TASK: dict[str, Any] = {
    **{
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "data.jsonl"}},
    },
    **{"test_split": "test", "output_type": "multiple_choice"},
    **{"doc_to_text": "{{query}}", "doc_to_choice": "{{choices}}", "doc_to_target": "gold"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a Python file that would leave a mark, and no task file yet."""
    (tmp_path / "workflow/tasks").mkdir(parents=True)
    (tmp_path / "data.jsonl").write_text(
        json.dumps({"query": "a", "choices": ["b", "c"], "gold": 0})
    )
    mark = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\ndef docs(found):\n    return found\n"
    (tmp_path / "workflow/tasks/planted.py").write_text(mark)
    return tmp_path


def write(root: Path, **keys: Any) -> None:
    (root / "workflow/tasks/mine.yaml").write_text(yaml.safe_dump(TASK | keys))


FUNCTION = "process_docs: !function planted.docs"
CUSTOM = "filter_list: [{name: x, filter: [{function: custom, filter_fn: !function planted.docs}]}]"
# Text in task files, and in files that they include.
PLANTED: dict[str, dict[str, str]] = {
    "direct": {"mine.yaml": FUNCTION},
    "included": {"mine.yaml": "include: part.txt", "part.txt": FUNCTION},
    "included twice": {
        "mine.yaml": "include: [part.txt]",
        "part.txt": "include: deeper.txt",
        "deeper.txt": FUNCTION,
    },
    "elsewhere": {"mine.yaml": "process_docs: !function os.fspath"},
    "of a group": {"mine.yaml": "group: mine\ntask: [part]", "anything.yaml": FUNCTION},
    "of a tag": {"anything.yaml": f"tag: [mine]\n{FUNCTION}"},
    "nested": {"mine.yaml": CUSTOM},
}


def plant(root: Path, name: str) -> None:
    for file, text in PLANTED[name].items():
        task = TASK | ({"task": "part"} if file == "anything.yaml" else {})
        whole = {} if "group" in text or file.endswith(".txt") else task
        (root / "workflow/tasks" / file).write_text(
            f"{yaml.safe_dump(whole) if whole else ''}{text}\n"
        )


@pytest.mark.parametrize("name", PLANTED)
def test_a_function_of_a_task_file_runs_only_where_it_is_trusted(name: str, root: Path) -> None:
    plant(root, name)
    with pytest.raises(LaminaError, match="runs Python.*!function.*trust_code: true"):
        lm_tasks.load_task("mine", root)
    assert not (root / "ran").exists()
    if name not in ("elsewhere", "nested"):
        lm_tasks.load_task("mine", root, trust_code=True)
        assert (root / "ran").exists()


@pytest.mark.parametrize("section", ["calibrations", "benchmarks"])
def test_it_is_refused_before_anything_runs(section: str, root: Path) -> None:
    write_model_and_data(root)
    plant(root, "included")
    for name in ("microworld_recall", "microworld_facts"):  # which the other entries name
        (root / f"workflow/tasks/{name}.yaml").write_text(f"task: {name}\n")
    entry = {"task": "mine"} if section == "calibrations" else {}
    place = "calibrations.mine" if section == "calibrations" else "benchmarks.tasks.mine"
    with pytest.raises(LaminaError, match=f"^{place}: the task file .*trust_code: true"):
        load_configuration(set_key(minimal_config(), place, entry), root)
    load_configuration(set_key(minimal_config(), place, entry | {"trust_code": True}), root)


@pytest.mark.parametrize(
    "metric", [{"metric": "./planted.py"}, {"metric": "acc", "hf_evaluate": True}]
)
def test_a_metric_that_is_a_script_needs_trust(metric: dict[str, Any], root: Path) -> None:
    write(root, metric_list=[metric])
    with pytest.raises(LaminaError, match="none of lm-eval's own.*trust_code"):
        lm_tasks.load_task("mine", root)
    assert not (root / "ran").exists()


def test_a_template_sees_its_document_alone(root: Path) -> None:
    reach = "{{ cycler.__init__.__globals__.os.system('touch ran') }}"
    write(root, doc_to_text=reach)
    with pytest.raises(LaminaError, match="template of task 'mine'.*unsafe"):
        lm_tasks.task_object("mine", root)
    assert not (root / "ran").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("include: mine.yaml", "includes itself"),
        ("include: gone.yaml", "no such task file"),
        ("- a", "holds no keys"),
        ("a: &a [*a]", "stands inside what it refers to"),
        ("a: !!python/object/apply:os.system [touch ran]", "could not determine a constructor"),
        ("[" * 1000, "nested too deep"),
        (BOMB, "more than"),
    ],
)
def test_a_task_file_that_cannot_be_read_is_named(text: str, said: str, root: Path) -> None:
    (root / "workflow/tasks/mine.yaml").write_text(text)
    with pytest.raises(LaminaError, match=f"(?s)mine.yaml.*{said}|{said}"):
        task_files.list_reached_files("mine", task_files.find_task_folder(root))


def test_everything_behind_a_task_is_among_its_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that editing any of it makes stale what reads the task."""
    monkeypatch.chdir(root)
    plant(root, "included twice")
    (root / "workflow/tasks/beside.py").touch()
    names = ["mine.yaml", "part.txt", "deeper.txt", "planted.py", "beside.py"]
    assert set(task_files.list_task_files("mine")) == {
        f"workflow/tasks/{name}" for name in names
    } | {"data.jsonl"}


NAMED = [
    {"data_files": {"test": file}} for file in ("file://{root}/more/data.jsonl", "more/*.jsonl")
]


@pytest.mark.parametrize("options", [*NAMED, {"data_dir": "more"}, {"data_dir": "{root}/more"}])
def test_data_are_known_however_named(
    options: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "more").mkdir()
    (root / "more/data.jsonl").write_text(
        json.dumps({"query": "a", "choices": ["b", "c"], "gold": 0})
    )
    options = json.loads(json.dumps(options).replace("{root}", str(root)))
    write(root, dataset_kwargs=options, test_split="test" if "data_files" in options else "train")
    monkeypatch.chdir(root)
    files = {Path(file).resolve() for file in task_files.list_task_files("mine", root)}
    assert root / "more/data.jsonl" in files and root / "data.jsonl" not in files
    assert len(lm_tasks.task_object("mine", root).dataset) == 1

"""Python that task files name runs only where it is trusted; all files of a task are known."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.data import lm_tasks, task_files
from lamina.errors import LaminaError
from lamina_workflow.checks.load import load_configuration
from tests.given.configurations import minimal_config, set_key, write_model_and_data

TASK: dict[str, Any] = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "data.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{query}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "gold",
}
DOCUMENT = json.dumps({"query": "a", "choices": ["b", "c"], "gold": 0})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project without a task file and with Python that leaves the file `ran` when it runs."""
    (tmp_path / "workflow/tasks").mkdir(parents=True)
    (tmp_path / "data.jsonl").write_text(DOCUMENT)
    planted_code = f"""
from pathlib import Path
Path({str(tmp_path / "ran")!r}).touch()
def docs(documents):
    return documents
"""
    (tmp_path / "workflow/tasks/planted.py").write_text(planted_code)
    return tmp_path


def write_task(root: Path, **changes: Any) -> None:
    (root / "workflow/tasks/mine.yaml").write_text(yaml.safe_dump(TASK | changes))


WHOLE_TASK = yaml.safe_dump(TASK)
TASK_OF_GROUP = yaml.safe_dump(TASK | {"task": "part"})
FUNCTION = "process_docs: !function planted.docs\n"
CUSTOM_FILTER = (
    "filter_list: [{name: x, filter: [{function: custom, filter_fn: !function planted.docs}]}]\n"
)
# Task files, and files that they include, by their names.
PLANTED: dict[str, dict[str, str]] = {
    "direct": {"mine.yaml": WHOLE_TASK + FUNCTION},
    "included": {"mine.yaml": WHOLE_TASK + "include: part.txt", "part.txt": FUNCTION},
    "included twice": {
        "mine.yaml": WHOLE_TASK + "include: [part.txt]",
        "part.txt": "include: deeper.txt",
        "deeper.txt": FUNCTION,
    },
    "of a group": {
        "mine.yaml": "group: mine\ntask: [part]",
        "anything.yaml": TASK_OF_GROUP + FUNCTION,
    },
    "of a tag": {"anything.yaml": TASK_OF_GROUP + "tag: [mine]\n" + FUNCTION},
    "elsewhere": {"mine.yaml": WHOLE_TASK + "process_docs: !function os.fspath"},
    "nested": {"mine.yaml": WHOLE_TASK + CUSTOM_FILTER},
}


def plant_function(root: Path, name: str) -> None:
    for file_name, text in PLANTED[name].items():
        (root / "workflow/tasks" / file_name).write_text(text)


@pytest.mark.parametrize("name", PLANTED)
def test_a_function_of_a_task_file_runs_only_where_it_is_trusted(name: str, root: Path) -> None:
    plant_function(root, name)
    with pytest.raises(LaminaError, match="runs Python.*!function.*trust_code: true"):
        lm_tasks.load_task("mine", root)
    assert not (root / "ran").exists()


@pytest.mark.parametrize("name", sorted(PLANTED.keys() - {"elsewhere", "nested"}))
def test_a_trusted_function_of_a_task_file_runs(name: str, root: Path) -> None:
    plant_function(root, name)
    lm_tasks.load_task("mine", root, trust_code=True)
    assert (root / "ran").exists()


@pytest.mark.parametrize(
    ("key", "options"),
    [("calibrations.mine", {"task": "mine"}), ("benchmarks.tasks.mine", {})],
)
def test_a_function_is_refused_before_any_job(
    key: str, options: dict[str, Any], root: Path
) -> None:
    write_model_and_data(root)
    plant_function(root, "included")
    for name in ("microworld_recall", "microworld_facts"):  # which other entries name
        (root / f"workflow/tasks/{name}.yaml").write_text(f"task: {name}\n")
    raw_config = set_key(minimal_config(), key, options)

    with pytest.raises(LaminaError, match=f"^{key}: the task file .*trust_code: true"):
        load_configuration(raw_config, root)
    load_configuration(set_key(raw_config, f"{key}.trust_code", True), root)


@pytest.mark.parametrize(
    "metric", [{"metric": "./planted.py"}, {"metric": "acc", "hf_evaluate": True}]
)
def test_a_metric_that_is_a_script_needs_trust(metric: dict[str, Any], root: Path) -> None:
    write_task(root, metric_list=[metric])
    with pytest.raises(LaminaError, match="not one of lm-eval's own.*trust_code"):
        lm_tasks.load_task("mine", root)
    assert not (root / "ran").exists()


def test_a_template_reaches_only_its_document(root: Path) -> None:
    escape = "{{ cycler.__init__.__globals__.os.system('touch ran') }}"
    write_task(root, doc_to_text=escape)
    with pytest.raises(LaminaError, match="template of task 'mine'.*unsafe"):
        lm_tasks.task_object("mine", root)
    assert not (root / "ran").exists()


def yaml_bomb() -> str:
    """Ten lists of nine aliases each, which are nine to the tenth entries when expanded."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for depth in range(9):
        aliases = ", ".join([f"*a{depth}"] * 9)
        lines.append(f"a{depth + 1}: &a{depth + 1} [{aliases}]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("include: mine.yaml", "includes itself"),
        ("include: gone.yaml", "no such task file"),
        ("- a", "holds no keys"),
        ("a: &a [*a]", "is inside the value that it refers to"),
        ("a: !!python/object/apply:os.system [touch ran]", "could not determine a constructor"),
        ("[" * 1000, "nested too deeply"),
        (yaml_bomb(), "more than"),
    ],
    ids=["cycle", "missing", "list", "alias of itself", "Python object", "depth", "bomb"],
)
def test_a_task_file_that_cannot_be_read_is_named(text: str, fault: str, root: Path) -> None:
    (root / "workflow/tasks/mine.yaml").write_text(text)
    with pytest.raises(LaminaError, match=f"(?s)mine.yaml.*{fault}|{fault}"):
        task_files.list_reached_files("mine", task_files.find_task_folder(root))


def test_editing_any_file_of_a_task_makes_its_readers_stale(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that it includes, its data, and all Python of its folder."""
    monkeypatch.chdir(root)
    plant_function(root, "included twice")
    (root / "workflow/tasks/helper.py").touch()

    files = task_files.list_task_files("mine")

    assert sorted(files) == [
        "data.jsonl",
        "workflow/tasks/deeper.txt",
        "workflow/tasks/helper.py",
        "workflow/tasks/mine.yaml",
        "workflow/tasks/part.txt",
        "workflow/tasks/planted.py",
    ]


@pytest.mark.parametrize(
    ("dataset_options", "split"),
    [
        ({"data_files": {"test": "file://{root}/more/data.jsonl"}}, "test"),
        ({"data_files": {"test": "more/*.jsonl"}}, "test"),
        ({"data_dir": "more"}, "train"),
        ({"data_dir": "{root}/more"}, "train"),
    ],
    ids=["URL", "pattern", "folder", "absolute folder"],
)
def test_data_of_a_task_are_among_its_files_however_they_are_named(
    dataset_options: dict[str, Any], split: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "more").mkdir()
    (root / "more/data.jsonl").write_text(DOCUMENT)
    options_text = json.dumps(dataset_options).replace("{root}", str(root))
    write_task(root, dataset_kwargs=json.loads(options_text), test_split=split)
    monkeypatch.chdir(root)

    files = {Path(file).resolve() for file in task_files.list_task_files("mine", root)}

    assert root / "more/data.jsonl" in files
    assert root / "data.jsonl" not in files
    assert len(lm_tasks.task_object("mine", root).dataset) == 1

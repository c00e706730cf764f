"""What `lamina paper` writes: studies that load, measure every number of the paper, and share no data."""

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.errors import LaminaError
from lamina_workflow import cli
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.papers.data import list_tasks, read_pool
from lamina_workflow.papers.study import (
    PAPERS,
    PaperRequest,
    SmallModel,
    name_folder,
    read_paper,
    shrink,
    write_paper,
)
from tests import ROOT
from tests.given.papers import list_measured, list_numbers

REFERENCE = ROOT / "resources/reference"  # of 12 layers
N_SAMPLES = 4


def request(name: str, **changes: Any) -> PaperRequest:
    options: dict[str, Any] = {
        "small": str(REFERENCE),
        "data": REFERENCE / "data",
        "n_samples": N_SAMPLES,
    }
    return PaperRequest(name, **(options | changes))


def load_written(folder: Path) -> Configuration:
    raw = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    with chdir(folder):
        return load_configuration(raw, folder)


def read_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_lines(file: Path, records: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def question(number: int) -> dict[str, Any]:
    return {"query": f"question {number}", "choices": ["yes", "no"], "gold": number % 2}


@pytest.fixture(params=PAPERS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The name of each paper, and the folder of its study on the embedded model."""
    write_paper(
        PaperRequest(request.param, (), str(REFERENCE), REFERENCE / "data", N_SAMPLES), tmp_path
    )
    return request.param, tmp_path


def test_every_number_of_a_paper_is_measured_on_the_small_model(written: tuple[str, Path]) -> None:
    name, folder = written
    measured = list_measured(load_written(folder))

    numbers = list_numbers(PAPERS[name], folder / "config/papers/expected.csv")

    assert len(numbers) == len(list_numbers(PAPERS[name]))
    for number in numbers:
        assert set(number.measurements()) <= measured, number


def test_studies_and_their_lists_stay(written: tuple[str, Path]) -> None:
    name, folder = written
    small = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    paper = read_paper(name)

    assert small["studies"].keys() == paper["studies"].keys()
    for study, entry in paper["studies"].items():
        assert small["studies"][study]["models"] == ["small"]
        for key in entry.keys() - {"models", "removed"}:
            assert small["studies"][study][key] == entry[key]
    assert small.get("repairs") == paper.get("repairs")


def test_no_question_and_no_text_is_in_two_places(written: tuple[str, Path]) -> None:
    _, folder = written

    files = [*folder.glob("data/*.jsonl"), *folder.glob("data/*/*.jsonl")]

    records = [json.dumps(record) for file in files for record in read_lines(file)]
    assert len(files) > 6
    assert len(set(records)) == len(records)


def test_layers_are_those_at_the_same_share_of_the_depth() -> None:
    """Of 32 layers to 12: 7, 11, 8, 16 and 24 are 2.6, 4.1, 3, 6 and 9."""
    paper = read_paper("ghosted-layers")

    small = shrink(paper, SmallModel("model", 12), N_SAMPLES, has_data=True)

    assert small["studies"]["repairs"]["removed"] == [2, 4]
    assert small["studies"]["other_models"]["removed"] == [2, 4]
    # 23 · 12 / 32 = 8.6 and 29 · 12 / 32 = 10.9.
    assert small["selectors"]["published"]["layers"] == [8, 9, 10]
    assert small["selectors"]["shortened_llama"]["protect"] == [0, 1, -1]


def test_a_deeper_model_takes_no_more_steps() -> None:
    paper = read_paper("ghosted-layers")

    small = shrink(paper, SmallModel("model", 30), N_SAMPLES, has_data=True)

    assert small["studies"]["repairs"]["removed"] == [2, 4]
    # 23 · 30 / 32 = 21.6 and 29 · 30 / 32 = 27.2.
    assert small["selectors"]["published"]["layers"] == [21, 22, 23, 24, 25, 26, 27]


def test_amounts_are_cut() -> None:
    small = shrink(read_paper("deeper-layers"), SmallModel("model", 12), N_SAMPLES, has_data=False)

    c4 = small["calibrations"]["c4"]
    assert (c4["hub"], c4["documents"], c4["length"]) == ("allenai/c4", "0:4", 64)
    # Those of a test do not begin where a calibration does.
    assert small["benchmarks"]["perplexity"]["c4"]["documents"] == "4:8"
    assert small["benchmarks"]["tasks"]["gsm8k"] == {"num_fewshot": 1, "limit": 4}
    training = small["healings"]["qlora"]
    assert (training["epochs"], training["max_steps"]) == (1, 4)
    assert "quantise" not in training


def test_the_scores_of_several_passes_need_two() -> None:
    paper = read_paper("rethinking-layer-relevance")

    small = shrink(paper, SmallModel("model", 12), N_SAMPLES, has_data=True)

    assert (small["healings"]["lora"]["epochs"], small["healings"]["lora_passes"]["epochs"]) == (
        1,
        2,
    )
    assert small["healings"]["lora_passes"]["checkpoints"] == [1]


def test_fields_of_a_data_set_hold_the_parts_of_a_document(tmp_path: Path) -> None:
    write_paper(request("rethinking-layer-relevance"), tmp_path)

    [record, *_] = read_lines(tmp_path / "data/sahil2801-CodeAlpaca-20k/train.jsonl")
    assert record.keys() == {"instruction", "input", "output"}
    joined = " ".join(record.values())
    corpora = REFERENCE.glob("data/corpus_*.jsonl")
    assert joined in [line["text"] for corpus in corpora for line in read_lines(corpus)]


def test_a_task_takes_the_file_of_its_name(tmp_path: Path) -> None:
    write_lines(tmp_path / "open_book-qa.jsonl", [question(number) for number in range(8)])
    write_lines(tmp_path / "others.jsonl", [question(number) for number in range(5, 40)])
    pool = read_pool(tmp_path)

    named_file, named_questions = pool.deal_questions("openbookqa", 6)
    other_file, other_questions = pool.deal_questions("arc_easy", 32)

    assert (named_file, other_file) == ("open_book-qa.jsonl", "others.jsonl")
    assert named_questions == [question(number) for number in range(6)]
    # Three of its questions are in the first file.
    assert other_questions == [question(number) for number in range(8, 40)]
    with pytest.raises(LaminaError, match="no file has 3 questions left for task 'piqa'"):
        pool.deal_questions("piqa", 3)


def test_lines_end_as_in_calibrations(tmp_path: Path) -> None:
    """At a line feed only, and blank lines count for nothing."""
    text = "one two three\u2028" + "word " * 30
    lines = json.dumps({"text": text}, ensure_ascii=False) + "\n\n"
    (tmp_path / "texts.jsonl").write_text(lines, encoding="utf-8")

    assert read_pool(tmp_path).documents == [text]


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data / "questions.jsonl", [question(number) for number in range(400)])
    write_lines(data / "texts.jsonl", [{"text": "short"}, {"text": "word " * 30}])

    for _ in range(2):  # what was written by then does not count as a study
        with pytest.raises(
            LaminaError, match="8 texts of at least 20 words are needed, but only 1 are"
        ):
            write_paper(request("ghosted-layers", data=data), tmp_path / "study")


def test_a_study_can_run_alone_with_its_models(tmp_path: Path) -> None:
    """Table 2 needs no Qwen3-14B."""
    alone = PaperRequest("ghosted-layers", ("repairs",))

    write_paper(alone, tmp_path)

    written = yaml.safe_load((tmp_path / "config.yaml").read_text(encoding="utf-8"))
    paper = read_paper("ghosted-layers")
    assert written["studies"] == {"repairs": paper["studies"]["repairs"]}
    assert list(written["models"]) == paper["studies"]["repairs"]["models"]
    assert written["calibrations"] == paper["calibrations"]
    assert name_folder(alone) == Path("lamina-ghosted-layers-repairs")


def test_a_study_of_one_model_is_compared_with_numbers_of_that_model(tmp_path: Path) -> None:
    write_paper(request("ghosted-layers", studies=("selections",)), tmp_path)

    numbers = list_numbers(PAPERS["ghosted-layers"], tmp_path / "config/papers/expected.csv")

    llama_numbers = [
        number
        for number in list_numbers(PAPERS["ghosted-layers"])
        if number.source == "meta-llama/Llama-3.1-8B"
    ]
    assert [number.value for number in numbers] == [number.value for number in llama_numbers]


def test_the_same_command_goes_on_and_another_one_is_refused(tmp_path: Path) -> None:
    first = request("ghosted-layers")
    write_paper(first, tmp_path)
    questions = (tmp_path / "data/arc_easy_test.jsonl").read_text()

    write_paper(first, tmp_path)

    assert (tmp_path / "data/arc_easy_test.jsonl").read_text() == questions
    with pytest.raises(LaminaError, match="is another study, or was edited"):
        write_paper(request("ghosted-layers", n_samples=5), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "ghost"}, "there is no paper 'ghost'. Write one of: rethinking-layer-relevance"),
        ({"studies": ("table_2",)}, "--study: the paper has no study 'table_2'"),
        ({"small": "nowhere"}, "--small: there is no nowhere"),
        ({"data": Path("nowhere")}, "--data: there is no folder nowhere"),
        ({"small": None}, "--data: this needs --small"),
    ],
)
def test_what_does_not_exist_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    name = changes.pop("name", "ghosted-layers")

    with pytest.raises(LaminaError, match=message):
        write_paper(request(name, **changes), tmp_path)


def test_a_study_that_cannot_run_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that was there stays."""

    def refuse(raw: object, folder: Path) -> None:
        raise LaminaError("studies.small.removed: too many")

    monkeypatch.setattr("lamina_workflow.checks.load.load_configuration", refuse)
    new_folder = tmp_path / "new"
    old_folder = tmp_path / "old"
    write_paper(request("deeper-layers"), old_folder)
    for folder in (new_folder, old_folder):
        with pytest.raises(LaminaError, match="too many"):
            cli.paper(
                "deeper-layers",
                small=str(REFERENCE),
                data=REFERENCE / "data",
                samples=N_SAMPLES,
                folder=folder,
            )
    assert not new_folder.exists()
    assert load_written(old_folder)


def test_written_answers_stay_written(tmp_path: Path) -> None:
    """GSM8K's small task generates, the others choose."""
    write_paper(request("deeper-layers"), tmp_path)

    tasks = {
        task: yaml.safe_load((tmp_path / f"workflow/tasks/{task}.yaml").read_text())
        for task in list_tasks(read_paper("deeper-layers"))
    }
    written = {task for task, file in tasks.items() if file["output_type"] == "generate_until"}
    assert written == {"gsm8k", "mmlu_flan_cot_fewshot"}

"""What lamina writes in lm-eval's files is what lm-eval itself writes of the cut model."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from lm_eval.utils import (
    get_file_task_name,
    get_latest_filename,
    get_results_filenames,
    get_sample_results_filenames,
    make_table,
)
from transformers import PreTrainedModel

from lamina.data.prompts import PLAIN, Style
from lamina.errors import LaminaError
from lamina.evaluation.lm_eval_files import join_results, write_lm_eval_files
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.materialise import materialise
from tests.given import tiny
from tests.given.cut_models import cut
from tests.given.tasks import evaluate_with_lm_eval, make_task

NAME = "tiny/words/cosine/removed=2/none/none"
UNITS = ["1", "3"]


def documents(n_documents: int, first: int) -> list[dict[str, Any]]:
    return [
        {
            "q": f"{tiny.WORDS[index % 40]} {tiny.WORDS[index * 7 % 50]}",
            "c": [tiny.WORDS[(index + shift) % 55] for shift in (1, 5, 11)],
            "g": index % 3,
        }
        for index in range(first, first + n_documents)
    ]


def task_of(name: str, first: int) -> Any:
    split = {"test": documents(12, first)}
    return make_task(split, task=name, test_split="test", num_fewshot=0)


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return tiny.model()


@pytest.fixture(scope="module")
def folder(base: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a variant on two tasks."""
    variant = materialise(base, {"units": UNITS})
    results = []
    for name, first in (("words", 0), ("others", 100)):
        benchmark = TaskBenchmark(task_of(name, first), base, tiny.tokenizer())
        results.append(benchmark.evaluate(variant, NAME))
    written = tmp_path_factory.mktemp("files")
    write_lm_eval_files(join_results(results), written, NAME, PLAIN)
    return written


def read_samples(folder: Path, task: str) -> list[dict[str, Any]]:
    """The samples of a task, read as those who use lm-eval's files read them."""
    (file,) = [file for file in folder.glob("samples_*") if get_file_task_name(file.name) == task]
    return list(load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder)))


def test_lm_eval_finds_and_prints_the_results(folder: Path) -> None:
    files = sorted(str(file) for file in folder.iterdir() if file.is_file())

    assert len(get_results_filenames(files)) == 1
    sample_names = [Path(file).name for file in get_sample_results_filenames(files)]
    assert {get_file_task_name(name) for name in sample_names} == {"words", "others"}
    results = json.loads(Path(get_latest_filename(get_results_filenames(files))).read_text())
    assert results["model_name"] == NAME
    assert results["config"]["model_args"] == {"pretrained": NAME}
    table = make_table(results)
    for task in ("words", "others"):
        assert f"{results['results'][task]['acc,none']:.4f}" in table


def test_scores_and_answers_are_those_of_lm_eval_on_the_cut_model(
    base: PreTrainedModel, folder: Path
) -> None:
    expected = evaluate_with_lm_eval(cut(base, UNITS), task_of("words", 0))

    (file,) = folder.glob("results_*.json")
    results = json.loads(file.read_text())
    for metric in ("acc,none", "acc_stderr,none"):
        assert results["results"]["words"][metric] == expected["results"]["words"][metric]
    assert results["n-samples"]["words"] == expected["n-samples"]["words"]
    samples = read_samples(folder, "words")
    assert len(samples) == len(expected["samples"]["words"]) == 12
    for sample, expected_sample in zip(samples, expected["samples"]["words"], strict=True):
        for key in ("doc_id", "doc", "acc", "doc_hash", "prompt_hash", "target_hash"):
            assert sample[key] == expected_sample[key]
        likelihoods = [float(response[0]) for response in sample["filtered_resps"]]
        expected_likelihoods = [response[0] for response in expected_sample["filtered_resps"]]
        assert likelihoods == pytest.approx(expected_likelihoods, abs=1e-4)


def test_the_files_say_how_prompts_were_written(base: PreTrainedModel, tmp_path: Path) -> None:
    results = TaskBenchmark(task_of("words", 0), base, tiny.tokenizer()).evaluate(base, NAME)
    style = Style(chat_template=True, system="Be brief.")

    write_lm_eval_files(join_results([results]), tmp_path, NAME, style, "{{ messages }}")

    (file,) = tmp_path.glob("results_*.json")
    record = json.loads(file.read_text())
    assert record["chat_template"] == "{{ messages }}"
    assert record["system_instruction"] == "Be brief."
    assert record["fewshot_as_multiturn"] is True


def test_files_that_could_not_be_written_are_missed(base: PreTrainedModel, tmp_path: Path) -> None:
    results = TaskBenchmark(task_of("words", 0), base, tiny.tokenizer()).evaluate(base, NAME)
    (tmp_path / "file").write_text("")

    with pytest.raises(LaminaError, match="could not write its files"):
        write_lm_eval_files(join_results([results]), tmp_path / "file", NAME, PLAIN)

"""The tokens of a benchmark by its characters, against its tokens, and by hand."""

from pathlib import Path

import pyarrow as pa
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina.data import encoding, lm_tasks
from lamina.data.benchmark_documents import tabulate_documents
from lamina.options.benchmarks import PerplexityEntry
from lamina.store import parquet
from lamina_workflow.cost import documents, estimate
from lamina_workflow.cost.work import Tokens
from tests import ROOT

REFERENCE = ROOT / "resources/reference"


@pytest.mark.parametrize("task_name", ["microworld_facts", "microworld_addition"])
def test_a_task_has_about_the_tokens_of_its_samples(task_name: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    task = lm_tasks.task_object(task_name, ROOT, split="train")
    samples = lm_tasks.task_samples(task, encoding.open_encoder(model, tokenizer), 200, 0)
    exact = estimate.count_tokens(samples)

    tested = lm_tasks.test_documents(lm_tasks.task_object(task_name, ROOT), 200)
    file = write_documents(tmp_path, tested)
    characters_per_token = documents.measure_characters(tokenizer, samples)
    counted = documents.count_document_tokens(file, characters_per_token)
    assert counted.samples == exact.samples == 200
    for name in ("packed", "rows", "stream", "longest", "scored"):
        assert getattr(counted, name) == pytest.approx(getattr(exact, name), rel=0.35), name


def write_documents(folder: Path, tested: list[tuple[str, list[str]]]) -> Path:
    file = folder / "task.parquet"
    table: pa.Table = tabulate_documents(tested, with_text=False)
    parquet.write_table(file, table)
    return file


def test_the_tokens_of_choices_by_hand(tmp_path: Path) -> None:
    """Two characters a token. The last token of a choice is only predicted."""
    file = write_documents(tmp_path, [("x" * 20, ["y" * 6, "y" * 2, "y" * 2])])
    assert documents.count_document_tokens(file, 2.0) == Tokens(
        samples=1,
        packed=10 + 2,
        rows=10 + 2,  # choices of one token need no row of their own
        stream=10 + round(5 / 3),
        longest=12,
        scored=1 + 2,
        lines=(12,),
        answers=round(5 / 3),
    )


def test_an_answer_that_is_written_follows_its_examples(tmp_path: Path) -> None:
    """Two examples of 10 and 4 tokens each stand before a question of 10."""
    file = write_documents(tmp_path, [("x" * 20, ["y" * 8])])
    counted = documents.count_document_tokens(file, 2.0, n_examples=2, longest_answer=16)
    assert (counted.asked, counted.longest_written, counted.answers) == (10 + 2 * 14, 16, 4)
    assert counted.packed == 38 + 3


def test_a_chat_template_adds_what_it_writes_around_a_question() -> None:
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    tokenizer.chat_template = (
        "{% for turn in messages %}{{ turn.role }} : {{ turn.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}{{ answering }} :{% endif %}"
    )
    manifest = {
        "chat_template": True,
        "system_prompt": "add the numbers",
        "template_arguments": {"answering": "answer"},
    }

    question = "what is 2 + 3"
    written = f"system : add the numbers\nuser : {question}\nanswer :"

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    added = documents.count_style_tokens(tokenizer, manifest)
    assert added == count(written) - count(question)
    assert documents.count_style_tokens(tokenizer, manifest | {"chat_template": False}) == len(
        tokenizer("add the numbers")["input_ids"]
    )


def test_every_question_has_the_tokens_of_its_style(tmp_path: Path) -> None:
    file = write_documents(
        tmp_path, [("x" * 20, ["y" * 6, "y" * 6]), ("x" * 20, ["y" * 6, "y" * 6])]
    )

    plain = documents.count_document_tokens(file, 2.0)
    styled = documents.count_document_tokens(file, 2.0, n_style_tokens=30)

    assert styled.packed == plain.packed + 2 * 30
    assert styled.rows == plain.rows + 2 * 2 * 30
    assert styled.longest == plain.longest + 30


@pytest.mark.parametrize(("joined", "lines"), [(None, (1, 2, 4)), (" ", ())])
def test_only_texts_of_different_lengths_are_padded(
    tmp_path: Path, joined: str | None, lines: tuple[int, ...]
) -> None:
    """Of two texts, one has two windows. Windows of a joined text have one length."""
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    texts = ["the", "the the the the the the"]
    counts = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert counts == [1, 6]
    file = tmp_path / "book.parquet"
    table: pa.Table = tabulate_documents([(text, []) for text in texts], with_text=True)
    parquet.write_table(file, table)
    entry = PerplexityEntry.from_options({"text": "book.txt", "window": 4, "joined": joined})

    assert estimate._count_text(file, entry, tokenizer).lines == lines

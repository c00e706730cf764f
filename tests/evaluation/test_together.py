"""Variants that are measured in one pass have the numbers that each has alone, and the pass is shorter."""

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.lm_tasks import task_object
from lamina.errors import LaminaError
from lamina.evaluation import perplexity, together
from lamina.evaluation.assembly import Parts
from lamina.evaluation.tasks import TaskBenchmark
from lamina.evaluation.together import Likelihood, Scored, Together
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repair.protocol import Fitted
from tests import ROOT
from tests.evaluation.test_evaluation import plain_nll
from tests.given import tiny
from tests.given.slow import slow_except
from tests.given.tasks import BOOTSTRAP_RESAMPLES, evaluate_with_lm_eval, make_task

PLANS: dict[str, list[str]] = {
    "one": ["2"],
    "two": ["1", "2"],
    "apart": ["4", "1"],
    "first": ["0"],
    "halves": ["0.attention", "3.mlp"],
}


def variants(model: PreTrainedModel, names: tuple[str, ...] = tuple(PLANS)) -> dict[str, Parts]:
    """The base, some cuts, and one cut with a repair at each boundary."""
    rng = torch.Generator().manual_seed(0)
    ghosts = {
        boundary: Fitted(
            "ghost",
            {"operator": torch.randn(32, 32, generator=rng) / 20, "bias": torch.ones(32) / 9},
        )
        for boundary in ((1, 2), (4, 5))
    }
    found = {"base": Parts(None, None, None)} | {
        name: Parts({"units": PLANS[name]}, None, None) for name in names
    }
    return found | {"repaired": Parts({"units": ["4", "1"]}, ghosts, None)}


def in_one_pass(model: PreTrainedModel, parts: Mapping[str, Parts]) -> Together:
    candidates = {name: together.candidate_of(model, each) for name, each in parts.items()}
    return Together(model, {name: found for name, found in candidates.items() if found is not None})


def built(
    model: PreTrainedModel, parts: Mapping[str, Parts]
) -> Iterator[tuple[str, PreTrainedModel]]:
    return (
        (name, materialise(model, each.plan, each.patches, each.adapter))
        for name, each in parts.items()
    )


def rows() -> list[Scored]:
    """Choices behind one context, contexts that differ before one ending, and texts."""
    draw, found = random.Random(0), list[Scored]()
    for _ in range(4):
        context = tuple(draw.choices(range(4, tiny.VOCABULARY), k=draw.randint(1, 20)))
        found += [
            (context, tuple(draw.choices(range(4, tiny.VOCABULARY), k=draw.randint(1, 4))))
            for _ in range(4)
        ]
    before, after = tuple(range(4, 24)), (7, 8, 9)
    found += [((*before, number), after) for number in (30, 31)]
    return [*found, ((5,), tuple(draw.choices(range(4, tiny.VOCABULARY), k=40)))]


@torch.no_grad()
def alone(model: PreTrainedModel, row: Scored) -> Likelihood:
    ids = torch.tensor([[*row[0], *row[1]]])
    logs = model(ids).logits.log_softmax(-1)[0, len(row[0]) - 1 : -1]
    ended = torch.tensor(row[1])
    return Likelihood(
        float(logs[range(len(ended)), ended].sum()), bool((logs.argmax(-1) == ended).all())
    )


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "gemma2", "gemma3_text", "bloom", "opt", "mixtral"]
)
def test_each_row_of_each_variant_is_as_alone(family: str) -> None:
    model = tiny.model(family)
    parts = variants(model)
    pass_ = in_one_pass(model, parts)
    answers = set()
    for name, variant in built(model, parts):
        found = pass_.likelihoods(name, rows(), "a test")
        assert found is not None
        for ours, row in zip(found, rows(), strict=True):
            theirs = alone(variant, row)
            assert (
                ours.nats == pytest.approx(theirs.nats, abs=1e-4, rel=1e-5)
                and ours.likeliest == theirs.likeliest
            )
        answers.add(tuple(round(each.nats, 3) for each in found))
    assert len(answers) == len(parts)


def test_contexts_and_the_layers_before_the_first_difference_run_once() -> None:
    model = tiny.model(depth=6)
    cuts = {"base": Parts(None, None, None)} | {
        name: Parts({"units": [name]}, None, None) for name in ("4", "5")
    }
    pass_ = in_one_pass(model, cuts)
    context = tuple(range(4, 34))
    asked = [(context, (40 + number, 50)) for number in range(4)]
    before = [(context, (number, 3)) for number in range(4)]
    pass_.likelihoods(
        "base", before, "a test"
    )  # the engine's proof of itself, on lines as long as what follows
    ran = [0] * 6
    for number, layer in enumerate(layers_of(model)):

        def count(module: Any, inputs: Any, output: Any, number: int = number) -> None:
            ran[number] += inputs[0].shape[0] * inputs[0].shape[1]

        layer.register_forward_hook(count)
    for name in cuts:
        pass_.likelihoods(name, asked, "a test")
    short = (
        2 * 3 + 3 * 3
    )  # by which the engine learns what its layers are given, on two and on three rows
    once = 30 + 4 + 1
    assert [number - short for number in ran] == [
        once,
        once,
        once,
        once,
        once,
        2 * once,
    ]  # 4 and 5 are passed by


def test_rows_share_a_line_where_that_is_worth_it() -> None:
    def sizes(rows: list[Scored]) -> list[int]:
        return [len(sample.rows) for sample in together.pack_shared_rows(rows)]

    context = tuple(range(40))
    choices = [(context, tuple(range(number, number + 20))) for number in range(4)]
    assert sizes([*choices, ((1, *context), (2,))]) == [4, 1]
    # Texts that begin with one token would be one line of all texts, whose attention grows with its square.
    assert sizes([((1,), tuple(range(30)))] * 5) == [1] * 5
    # A prompt of all questions: lines of 512 tokens, 47 times ten behind the forty.
    assert sizes([(context, tuple(range(10)))] * 100) == [47, 47, 6]
    # A context as long as that, with its choices.
    assert sizes([(tuple(range(2000)), tuple(range(400)))] * 4) == [4]
    late = [((*context, number), (7, 8)) for number in range(2)]
    assert sizes(late) == [2] and sizes([late[0], (late[1][0], (7, 9))]) == [1, 1]


def task(kind: str, folder: Path, longest: int = 9) -> Any:
    """A task of one of the kinds whose answers are log-likelihoods, on twelve documents."""
    draw = random.Random(longest - 6)

    def words(low: int, high: int) -> str:
        return " ".join(draw.choices(tiny.WORDS, k=draw.randint(low, high)))

    documents = [
        {
            "query": words(2, longest),
            "choices": [words(1, 3) for _ in range(3)],
            "gold": draw.randrange(3),
        }
        for _ in range(12)
    ]
    if kind in ("choices", "few_shot"):
        (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, documents)))
        return task_object(
            "mine", ROOT, 2 if kind == "few_shot" else 0, str(folder / "questions.jsonl")
        )
    choices = "{{[query + ' ' + choices[0], query + ' ' + choices[1], query + ' ' + choices[2]]}}"
    perplexities = [{"metric": "perplexity", "aggregation": "perplexity"}, {"metric": "acc"}]
    of_text = [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]
    kinds: dict[str, tuple[str, str, str, dict[str, Any]]] = {
        "late": ("multiple_choice", "{{gold}}", "{{' ' + query}}", {"doc_to_choice": choices}),
        "mutual": ("multiple_choice", "query", "gold", {"doc_to_choice": "choices"}),
        "ending": (
            "loglikelihood",
            "{{query}}",
            "{{' ' + choices[0]}}",
            {"metric_list": perplexities},
        ),
        "text": ("loglikelihood_rolling", "", "{{query}} {{choices[0]}}", {"metric_list": of_text}),
    }
    output, asked, answer, more = kinds[kind]
    metrics = [{"metric": "acc"}, *([{"metric": "acc_mutual_info"}] if kind == "mutual" else [])]
    keys = {"task": "mine", "test_split": "test", "num_fewshot": 0, "metric_list": metrics} | more
    return make_task({"test": documents}, output, doc_to_text=asked, doc_to_target=answer, **keys)


def assert_stock(
    model: PreTrainedModel, kind: str, folder: Path, longest: int = 9
) -> list[dict[str, Any]]:
    """The scores of variants in one pass are those of stock lm-eval on each; returned are the rows of all."""
    parts, rows = variants(model, ("two", "halves")), []
    benchmark, pass_ = (
        TaskBenchmark(task(kind, folder, longest), model, tiny.tokenizer()),
        in_one_pass(model, parts),
    )
    benchmark.lm._model_call = None  # type: ignore[assignment]  # nothing goes through HFLM
    for name, variant in built(model, parts):
        with mock.patch("lamina.evaluation.tasks._BOOTSTRAP", BOOTSTRAP_RESAMPLES):
            rows += (ours := benchmark.score(variant, name, pass_).metrics)
        theirs = evaluate_with_lm_eval(variant, task(kind, folder, longest))["results"]["mine"]
        for row in ours:
            assert row["value"] == pytest.approx(
                theirs[f"{row['metric']},none"], abs=1e-4, rel=1e-4
            )
            error = theirs[f"{row['metric']}_stderr,none"]
            assert row["stderr"] == (
                None if error == "N/A" else pytest.approx(error, abs=1e-4, rel=1e-4)
            )
    assert rows
    return rows


KINDS = ("choices", "few_shot", "late", "mutual", "ending", "text")


@pytest.mark.parametrize("kind", slow_except(["few_shot", "text"], KINDS))
def test_every_kind_of_task_scores_what_stock_lm_eval_scores(kind: str, tmp_path: Path) -> None:
    assert_stock(tiny.model(), kind, tmp_path)


@pytest.mark.parametrize("kind", ["choices", "few_shot", "ending", "text"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_questions_longer_than_the_context_are_cut_as_lm_eval_cuts_them(
    family: str, kind: str, tmp_path: Path
) -> None:
    """A GPT-2 has no position beyond its context. Half of the documents are longer than this one."""
    for row in assert_stock(of_context(32, family), kind, tmp_path, 60):
        assert (0 < row["n_cut"] <= 12) if kind != "text" else row["n_cut"] == 0


def of_context(tokens: int, family: str) -> PreTrainedModel:
    return tiny.model(
        family, **{"n_positions" if family == "gpt2" else "max_position_embeddings": tokens}
    )


def assert_plain(
    model: PreTrainedModel, lengths: tuple[int, ...], window: int, stride: int
) -> None:
    """Perplexities of variants in one pass are those of the plain recipe on each."""
    parts = variants(model)
    texts = [" ".join(random.Random(length).choices(tiny.WORDS, k=length)) for length in lengths]
    cut, pass_ = (
        perplexity.split_windows(texts, tiny.tokenizer(), window, stride),
        in_one_pass(model, parts),
    )
    for name, variant in built(model, parts):
        scores = perplexity.document_nll(variant, cut, len(texts), name, pass_)
        expected = [plain_nll(variant, text, window, stride) for text in texts]
        assert [nll for nll, _ in scores] == pytest.approx(
            [total for total, _ in expected], rel=1e-4
        )
        assert [tokens for _, tokens in scores] == [count for _, count in expected]


@pytest.mark.parametrize(("window", "stride"), [(64, 64), (8, 3)])
def test_perplexities_are_those_of_the_plain_recipe(window: int, stride: int) -> None:
    assert_plain(tiny.model(), (30, 2, 17), window, stride)


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
def test_a_window_as_long_as_the_context_is_measured(family: str) -> None:
    model = of_context(32, family)
    assert_plain(model, (80, 33, 32), 32, 32)
    cut = perplexity.split_windows([" ".join(tiny.WORDS)], tiny.tokenizer(), 33)
    with pytest.raises(LaminaError, match="window: 33 tokens are more than the context"):
        perplexity.document_nll(model, cut, 1, "base", Together(model, {}))


def test_a_variant_with_other_weights_is_measured_alone() -> None:
    model = tiny.model()
    trained = {(2, 3): Fitted("streamline", {})}
    assert together.candidate_of(model, Parts({"units": ["2"]}, None, "adapter")) is None
    assert (
        together.candidate_of(
            model, Parts({"units": ["2.@other"], "replacements": {"other": {}}}, None, None)
        )
        is None
    )
    assert together.candidate_of(model, Parts({"units": ["2"]}, trained, None)) is None
    assert Together(model, {}).likelihoods("one", rows(), "a test") is None


def test_refused_families_are_measured_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise LaminaError("the model family 'odd' cannot be swept")

    monkeypatch.setattr(together.sweep, "open_session", refuse)
    pass_ = in_one_pass(tiny.model(), {"base": Parts(None, None, None)})
    assert pass_.likelihoods("base", rows(), "a test") is None
    assert "Each variant is measured alone. the model family 'odd' cannot be swept" in caplog.text

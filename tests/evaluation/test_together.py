"""Variants that are measured in one pass have the numbers that each has alone.

And the pass is shorter: what they share runs once.
"""

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
from lamina.repairs.protocol import Fitted
from tests import ROOT
from tests.evaluation.test_evaluation import plain_nll
from tests.given import tiny
from tests.given.slow import slow_except
from tests.given.tasks import BOOTSTRAP_RESAMPLES, evaluate_with_lm_eval, make_task

BASE = Parts(None, None, None)


def cut_parts(*units: str) -> Parts:
    return Parts({"units": list(units)}, None, None)


def repaired_parts() -> Parts:
    """Two removed layers with a repair at each boundary."""
    generator = torch.Generator().manual_seed(0)
    fitted = {}
    for run in ((1, 2), (4, 5)):
        operator = torch.randn(32, 32, generator=generator) / 20
        fitted[run] = Fitted("ghost", {"operator": operator, "bias": torch.ones(32) / 9})
    return Parts({"units": ["4", "1"]}, fitted, None)


ALL_PARTS = {
    "base": BASE,
    "one layer": cut_parts("2"),
    "two layers": cut_parts("1", "2"),
    "two runs": cut_parts("4", "1"),
    "first layer": cut_parts("0"),
    "sub-layers": cut_parts("0.attention", "3.mlp"),
    "repaired": repaired_parts(),
}
FEW_PARTS = {name: ALL_PARTS[name] for name in ("base", "two layers", "sub-layers", "repaired")}


def open_pass(model: PreTrainedModel, parts_by_name: Mapping[str, Parts]) -> Together:
    candidates = {}
    for name, parts in parts_by_name.items():
        candidate = together.candidate_of(model, parts)
        if candidate is not None:
            candidates[name] = candidate
    return Together(model, candidates)


def materialise_all(
    model: PreTrainedModel, parts_by_name: Mapping[str, Parts]
) -> Iterator[tuple[str, PreTrainedModel]]:
    for name, parts in parts_by_name.items():
        yield name, materialise(model, parts.plan, parts.patches, parts.adapter)


def random_rows() -> list[Scored]:
    """Choices after one context, contexts that differ before the same ending, and a text."""
    generator = random.Random(0)

    def random_tokens(length: int) -> tuple[int, ...]:
        return tuple(generator.choices(range(4, tiny.VOCABULARY), k=length))

    rows: list[Scored] = []
    for _ in range(4):
        context = random_tokens(generator.randint(1, 20))
        for _ in range(4):
            rows.append((context, random_tokens(generator.randint(1, 4))))
    beginning = tuple(range(4, 24))
    ending = (7, 8, 9)
    rows.append(((*beginning, 30), ending))
    rows.append(((*beginning, 31), ending))
    rows.append(((5,), random_tokens(40)))
    return rows


@torch.no_grad()
def plain_likelihood(model: PreTrainedModel, row: Scored) -> Likelihood:
    """By one forward of one row."""
    context, continuation = row
    logits = model(torch.tensor([[*context, *continuation]])).logits[0]
    logprobs = logits.log_softmax(-1)[len(context) - 1 : -1]
    targets = torch.tensor(continuation)
    log_likelihood = float(logprobs[range(len(targets)), targets].sum())
    return Likelihood(log_likelihood, bool((logprobs.argmax(-1) == targets).all()))


@pytest.mark.parametrize(
    "family",
    slow_except(
        ["llama", "gemma3_text", "bloom"],
        ["llama", "mistral", "gemma2", "gemma3_text", "bloom", "opt", "mixtral"],
    ),
)
def test_each_row_of_each_variant_has_the_likelihood_that_it_has_alone(family: str) -> None:
    model = tiny.model(family)
    one_pass = open_pass(model, ALL_PARTS)
    rows = random_rows()

    distinct_results = set()
    for name, variant in materialise_all(model, ALL_PARTS):
        likelihoods = one_pass.likelihoods(name, rows, "a test")
        assert likelihoods is not None
        for likelihood, row in zip(likelihoods, rows, strict=True):
            expected = plain_likelihood(variant, row)
            assert likelihood.nats == pytest.approx(expected.nats, abs=1e-4, rel=1e-5)
            assert likelihood.likeliest == expected.likeliest
        distinct_results.add(tuple(round(likelihood.nats, 3) for likelihood in likelihoods))
    assert len(distinct_results) == len(ALL_PARTS)


def test_contexts_and_the_layers_before_the_first_difference_run_once() -> None:
    depth = 6
    model = tiny.model(depth=depth)
    parts_by_name = {"base": BASE, "4": cut_parts("4"), "5": cut_parts("5")}
    one_pass = open_pass(model, parts_by_name)
    context = tuple(range(4, 34))
    first_rows = [(context, (number, 3)) for number in range(4)]
    rows = [(context, (40 + number, 50)) for number in range(4)]
    # The engine proves itself first, on lines as long as what follows.
    one_pass.likelihoods("base", first_rows, "a test")

    n_tokens = [0] * depth
    for layer_index, layer in enumerate(layers_of(model)):

        def count_tokens(
            module: Any, inputs: Any, output: Any, layer_index: int = layer_index
        ) -> None:
            batch_size, length = inputs[0].shape[:2]
            n_tokens[layer_index] += batch_size * length

        layer.register_forward_hook(count_tokens)
    for name in parts_by_name:
        one_pass.likelihoods(name, rows, "a test")

    # What the engine gives its layers to learn their arguments: three tokens in two and three rows.
    n_probing = 2 * 3 + 3 * 3
    # The context, the first token of each choice, and the second one of the last.
    n_line = 30 + 4 + 1
    # Layer 4 is skipped by one variant; layer 5 runs for two streams.
    expected = [n_line, n_line, n_line, n_line, n_line, 2 * n_line]
    assert [count - n_probing for count in n_tokens] == expected


def n_rows_by_line(rows: list[Scored]) -> list[int]:
    return [len(sample.rows) for sample in together.pack_shared_rows(rows)]


CONTEXT = tuple(range(40))


def test_choices_share_the_line_of_their_context() -> None:
    choices = [(CONTEXT, tuple(range(number, number + 20))) for number in range(4)]
    other_row = ((1, *CONTEXT), (2,))
    assert n_rows_by_line([*choices, other_row]) == [4, 1]


def test_texts_that_begin_alike_do_not_share_a_line() -> None:
    """Attention over one line of all texts would grow with its square."""
    assert n_rows_by_line([((1,), tuple(range(30)))] * 5) == [1] * 5


def test_a_line_has_at_most_512_tokens() -> None:
    """A prompt of 40 tokens that all questions have: 47 questions of ten after it."""
    assert n_rows_by_line([(CONTEXT, tuple(range(10)))] * 100) == [47, 47, 6]


def test_a_context_longer_than_that_has_its_choices_on_its_line() -> None:
    assert n_rows_by_line([(tuple(range(2000)), tuple(range(400)))] * 4) == [4]


def test_contexts_share_a_line_if_they_differ_late_and_end_alike() -> None:
    first_context = (*CONTEXT, 0)
    second_context = (*CONTEXT, 1)
    assert n_rows_by_line([(first_context, (7, 8)), (second_context, (7, 8))]) == [2]
    assert n_rows_by_line([(first_context, (7, 8)), (second_context, (7, 9))]) == [1, 1]


TASK_KINDS = ("choices", "few_shot", "late", "mutual", "ending", "text")
CHOICES_AS_CONTEXTS = (
    "{{[query + ' ' + choices[0], query + ' ' + choices[1], query + ' ' + choices[2]]}}"
)
KIND_OPTIONS: dict[str, dict[str, Any]] = {
    "late": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{gold}}",
        "doc_to_target": "{{' ' + query}}",
        "doc_to_choice": CHOICES_AS_CONTEXTS,
        "metric_list": [{"metric": "acc"}],
    },
    "mutual": {
        "output_type": "multiple_choice",
        "doc_to_text": "query",
        "doc_to_target": "gold",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_mutual_info"}],
    },
    "ending": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{query}}",
        "doc_to_target": "{{' ' + choices[0]}}",
        "metric_list": [{"metric": "perplexity", "aggregation": "perplexity"}, {"metric": "acc"}],
    },
    "text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{query}} {{choices[0]}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
}


def likelihood_task(kind: str, folder: Path, longest: int = 9) -> Any:
    """A task whose answers are log-likelihoods, on twelve documents of up to `longest` words."""
    generator = random.Random(longest - 6)

    def random_words(low: int, high: int) -> str:
        return " ".join(generator.choices(tiny.WORDS, k=generator.randint(low, high)))

    documents = []
    for _ in range(12):
        query = random_words(2, longest)
        choices = [random_words(1, 3) for _ in range(3)]
        documents.append({"query": query, "choices": choices, "gold": generator.randrange(3)})
    if kind in ("choices", "few_shot"):
        file = folder / "questions.jsonl"
        file.write_text("\n".join(map(json.dumps, documents)))
        n_shot = 2 if kind == "few_shot" else 0
        return task_object("mine", ROOT, n_shot, str(file))
    options = {"task": "mine", "test_split": "test", "num_fewshot": 0, **KIND_OPTIONS[kind]}
    return make_task({"test": documents}, **options)


def score_variants(
    model: PreTrainedModel, kind: str, folder: Path, longest: int = 9
) -> list[dict[str, Any]]:
    """Rows of variants that were scored in one pass, after a comparison with lm-eval on each."""
    one_pass = open_pass(model, FEW_PARTS)
    task = likelihood_task(kind, folder, longest)
    benchmark = TaskBenchmark(task, model, tiny.tokenizer())
    benchmark.lm._model_call = None  # type: ignore[assignment]  # nothing goes through HFLM
    all_rows: list[dict[str, Any]] = []
    for name, variant in materialise_all(model, FEW_PARTS):
        with mock.patch("lamina.evaluation.tasks._BOOTSTRAP", BOOTSTRAP_RESAMPLES):
            rows = benchmark.score(variant, name, one_pass).metrics
        results = evaluate_with_lm_eval(variant, likelihood_task(kind, folder, longest))
        expected = results["results"]["mine"]
        for row in rows:
            expected_value = expected[f"{row['metric']},none"]
            expected_stderr = expected[f"{row['metric']}_stderr,none"]
            assert row["value"] == pytest.approx(expected_value, abs=1e-4, rel=1e-4)
            if expected_stderr == "N/A":
                assert row["stderr"] is None
            else:
                assert row["stderr"] == pytest.approx(expected_stderr, abs=1e-4, rel=1e-4)
        all_rows += rows
    assert all_rows
    return all_rows


@pytest.mark.parametrize("kind", slow_except(["few_shot", "text"], TASK_KINDS))
def test_every_kind_of_task_scores_what_lm_eval_scores(kind: str, tmp_path: Path) -> None:
    score_variants(tiny.model(), kind, tmp_path)


def model_of_context(family: str, context_length: int) -> PreTrainedModel:
    key = "n_positions" if family == "gpt2" else "max_position_embeddings"
    return tiny.model(family, **{key: context_length})


@pytest.mark.parametrize("kind", ["choices", "few_shot", "ending", "text"])
@pytest.mark.parametrize("family", slow_except(["gpt2"], ["gpt2", "llama"]))
def test_questions_longer_than_the_context_are_cut_as_lm_eval_cuts_them(
    family: str, kind: str, tmp_path: Path
) -> None:
    """A GPT-2 has no position after its context. Half of the documents are longer than this one."""
    rows = score_variants(model_of_context(family, 32), kind, tmp_path, 60)
    for row in rows:
        if kind == "text":
            assert row["n_cut"] == 0
        else:
            assert 0 < row["n_cut"] <= 12


def assert_plain_perplexities(
    model: PreTrainedModel, lengths: tuple[int, ...], window: int, stride: int
) -> None:
    """Perplexities of variants in one pass are those of the plain recipe on each."""
    texts = []
    for length in lengths:
        texts.append(" ".join(random.Random(length).choices(tiny.WORDS, k=length)))
    windows = perplexity.split_windows(texts, tiny.tokenizer(), window, stride)
    one_pass = open_pass(model, ALL_PARTS)
    for name, variant in materialise_all(model, ALL_PARTS):
        scores = perplexity.document_nll(variant, windows, len(texts), name, one_pass)
        for text, (nll, n_scored) in zip(texts, scores, strict=True):
            expected_nll, expected_n_scored = plain_nll(variant, text, window, stride)
            assert nll == pytest.approx(expected_nll, rel=1e-4)
            assert n_scored == expected_n_scored


@pytest.mark.parametrize(("window", "stride"), [(64, 64), (8, 3)])
def test_perplexities_are_those_of_the_plain_recipe(window: int, stride: int) -> None:
    assert_plain_perplexities(tiny.model(), (30, 2, 17), window, stride)


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
def test_a_window_as_long_as_the_context_is_measured(family: str) -> None:
    model = model_of_context(family, 32)
    assert_plain_perplexities(model, (80, 33, 32), 32, 32)

    longer_windows = perplexity.split_windows([" ".join(tiny.WORDS)], tiny.tokenizer(), 33)
    with pytest.raises(LaminaError, match="window: 33 tokens are more than the context"):
        perplexity.document_nll(model, longer_windows, 1, "base", Together(model, {}))


@pytest.mark.parametrize(
    "parts",
    [
        Parts({"units": ["2"]}, None, "adapter"),
        Parts({"units": ["2=other:2"], "replacements": {"other": {}}}, None, None),
        Parts({"units": ["2"]}, {(2, 3): Fitted("streamline", {})}, None),
    ],
    ids=["adapter", "donor", "trained layer"],
)
def test_a_variant_with_other_weights_is_measured_alone(parts: Parts) -> None:
    model = tiny.model()
    assert together.candidate_of(model, parts) is None
    assert Together(model, {}).likelihoods("variant", random_rows(), "a test") is None


def test_refused_families_are_measured_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise LaminaError("the model family 'odd' cannot be swept")

    monkeypatch.setattr(together.sweep, "open_session", refuse)
    one_pass = open_pass(tiny.model(), {"base": BASE})
    assert one_pass.likelihoods("base", random_rows(), "a test") is None
    assert "Each variant is measured alone. the model family 'odd' cannot be swept" in caplog.text

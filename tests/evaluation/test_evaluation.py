"""Benchmarks of many variants in one process give what the stock tools give for each alone."""

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, Qwen2MoeConfig, Qwen2MoeForCausalLM

from lamina.data.documents import perplexity_texts
from lamina.data.lm_tasks import task_object
from lamina.data.task_groups import DatasetTask
from lamina.errors import LaminaError
from lamina.evaluation import efficiency, perplexity
from lamina.evaluation.tasks import TaskBenchmark
from lamina.evaluation.together import Together
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options.benchmarks import Efficiency, TextEntry
from lamina.store import parquet
from tests import ROOT
from tests.families import configurations
from tests.given import tiny
from tests.given.slow import slow_except
from tests.given.tasks import evaluate_with_lm_eval, make_task

N_QUESTIONS = 24


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions with choices of one to three words."""
    path = tmp_path_factory.mktemp("task") / "questions.jsonl"
    generator = random.Random(0)
    lines = []
    for _ in range(N_QUESTIONS):
        query = generator.choices(tiny.WORDS, k=generator.randint(3, 12))
        choices = []
        for first_word in generator.sample(tiny.WORDS, 4):
            other_words = generator.choices(tiny.WORDS, k=generator.randint(0, 2))
            choices.append(" ".join([first_word, *other_words]))
        gold = generator.randrange(4)
        lines.append(json.dumps({"query": " ".join(query), "choices": choices, "gold": gold}))
    path.write_text("\n".join(lines))
    return path


def choice_task(questions: Path) -> Any:
    return task_object("mine", ROOT, 0, str(questions))


def generation_task() -> DatasetTask:
    """A task whose answer is generated, with few-shot examples from a train split."""
    generator = random.Random(1)

    def random_documents() -> list[dict[str, Any]]:
        return [{"q": " ".join(generator.choices(tiny.WORDS, k=4)), "a": "w1"} for _ in range(12)]

    return make_task(
        {"train": random_documents(), "test": random_documents()},
        "generate_until",
        task="generated",
        doc_to_target="{{a}}",
        num_fewshot=2,
        training_split="train",
        fewshot_split="train",
        test_split="test",
        generation_kwargs={"until": ["w5"], "max_gen_toks": 4, "do_sample": False},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )


def some_variants() -> list[Any]:
    """A base model, three cuts of it, and one with a patch."""
    base = tiny.model()
    operator = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) / 20
    return [
        materialise(base, None),
        materialise(base, {"units": ["2"]}),
        materialise(base, {"units": ["4", "1"]}),
        materialise(base, {"units": ["0.attention"]}),
        materialise(base, {"units": ["2"]}, {(2, 3): Patch(operator)}),
    ]


@pytest.mark.parametrize(("limit", "n_variants"), [(None, 3), (15, 2)])
def test_choices_of_each_variant_are_scored_as_by_lm_eval(
    questions: Path, limit: int | None, n_variants: int
) -> None:
    variants = some_variants()[:n_variants]
    benchmark = TaskBenchmark(choice_task(questions), variants[0], tiny.tokenizer(), limit)

    all_values = set()
    for variant in variants:
        scores = benchmark.score(variant, "x")

        expected = evaluate_with_lm_eval(variant, choice_task(questions), limit)
        expected_scores = expected["results"]["mine"]
        assert {row["metric"] for row in scores.metrics} == {"acc", "acc_norm"}
        for row in scores.metrics:
            metric = row["metric"]
            assert row["value"] == expected_scores[f"{metric},none"]
            assert row["stderr"] == expected_scores[f"{metric}_stderr,none"]
            assert row["n_samples"] == (limit or N_QUESTIONS)
            assert row["higher_is_better"]
            values = [row["value"] for row in scores.samples if row["metric"] == metric]
            assert values == [sample[metric] for sample in expected["samples"]["mine"]]
        all_values.add(tuple(row["value"] for row in scores.samples))
        parquet.from_rows("benchmarks", scores.metrics, model="m")
        parquet.from_rows("benchmark_samples", scores.samples, model="m")
    assert len(all_values) > 1


def test_generated_answers_of_each_variant_are_those_of_lm_eval() -> None:
    variants = some_variants()
    benchmark = TaskBenchmark(generation_task(), variants[0], tiny.tokenizer())
    for variant in variants:
        scores = benchmark.score(variant, "x")

        expected = evaluate_with_lm_eval(variant, generation_task())
        (row,) = scores.metrics
        assert row["metric"] == "exact_match"
        assert row["n_shot"] == 2
        assert row["n_samples"] == 12
        assert row["value"] == expected["results"]["generated"]["exact_match,none"]
        answers = [str(instance.resps) for instance in benchmark.task.instances]
        samples = expected["samples"]["generated"]
        assert sorted(answers) == sorted(str(sample["resps"][0]) for sample in samples)


def test_a_variant_that_gives_nan_is_named(questions: Path) -> None:
    model = tiny.model()
    tokenizer = tiny.tokenizer()
    choices = TaskBenchmark(choice_task(questions), model, tokenizer, 4)
    generation = TaskBenchmark(generation_task(), model, tokenizer, 4)
    windows = perplexity.split_windows(["w1 w2 w3"], tokenizer, 8)
    with torch.no_grad():
        layers_of(model)[0].mlp.down_proj.weight.fill_(float("nan"))

    name = "the variant q"
    with pytest.raises(LaminaError, match=f"{name} gives NaN during the evaluation of a task"):
        choices.score(model, name)
    with pytest.raises(LaminaError, match=f"{name} gives NaN during the generation"):
        generation.score(model, name)
    with pytest.raises(LaminaError, match=f"{name} gives NaN during the evaluation of perplexity"):
        perplexity.document_nll(model, windows, 1, name)


@torch.no_grad()
def plain_nll(model: Any, text: str, window: int, stride: int) -> tuple[float, int]:
    """Nats and scored tokens of a text by the sliding-window recipe, one window at a time."""
    token_ids = torch.tensor([tiny.tokenizer()(text)["input_ids"]])
    n_tokens = token_ids.shape[1]
    nll = 0.0
    n_scored = 0
    for start in range(0, n_tokens - 1, stride):
        end = min(start + window + 1, n_tokens)
        logprobs = model(token_ids[:, start : end - 1]).logits[0].log_softmax(-1)
        for position in range(n_scored + 1, end):
            nll -= float(logprobs[position - start - 1, token_ids[0, position]])
            n_scored += 1
        if end == n_tokens:
            break
    return nll, n_scored


def random_texts() -> list[str]:
    """Seven texts, one of which has a single word and so no scored token."""
    generator = random.Random(2)
    lengths = (30, 5, 1, 17, 8, 24, 2)
    return [" ".join(generator.choices(tiny.WORDS, k=length)) for length in lengths]


@pytest.mark.parametrize(("window", "stride"), [(64, 64), (8, 8), (8, 3)])
@pytest.mark.parametrize("family", ["llama", "bloom", "opt"])
def test_perplexity_is_the_plain_recipe_and_scores_each_token_once(
    family: str, window: int, stride: int
) -> None:
    model = tiny.model(family)
    texts = random_texts()

    windows = perplexity.split_windows(texts, tiny.tokenizer(), window, stride)
    scores = perplexity.document_nll(model, windows, len(texts), "x")

    for text, (nll, n_scored) in zip(texts, scores, strict=True):
        expected_nll, expected_n_scored = plain_nll(model, text, window, stride)
        assert nll == pytest.approx(expected_nll, rel=1e-4)
        assert n_scored == expected_n_scored == len(text.split()) - 1


def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens() -> None:
    scores = [(6.0, 2), (0.0, 0), (3.0, 4)]

    rows = perplexity.metric_rows(scores, tiny.VOCABULARY)

    row_by_metric = {row["metric"]: row for row in rows}
    nll = row_by_metric["nll"]
    assert nll["value"] == pytest.approx(1.5)
    assert nll["n_samples"] == 2
    ppl = row_by_metric["perplexity"]
    assert ppl["value"] == pytest.approx(math.exp(1.5))
    assert ppl["stderr"] == pytest.approx(math.exp(1.5) * nll["stderr"])
    per_log_vocabulary = row_by_metric["nll_per_log_vocabulary"]["value"]
    assert per_log_vocabulary == pytest.approx(1.5 / math.log(tiny.VOCABULARY))


def test_the_error_of_perplexity_is_that_of_a_ratio_over_documents() -> None:
    """Of nats to tokens; a document without tokens is none of them."""
    scores = [(6.0, 2), (0.0, 0), (3.0, 4), (5.0, 1)]

    rows = perplexity.metric_rows(scores, tiny.VOCABULARY)

    nats = np.array([6.0, 3.0, 5.0])
    n_tokens = np.array([2, 4, 1])
    residuals = nats - nats.sum() / n_tokens.sum() * n_tokens
    stderr = 3**0.5 * residuals.std(ddof=1) / n_tokens.sum()
    row_by_metric = {row["metric"]: row for row in rows}
    assert row_by_metric["nll"]["stderr"] == pytest.approx(stderr)
    assert row_by_metric["perplexity"]["stderr"] == pytest.approx(math.exp(14 / 7) * stderr)


def count_parameters(*modules: torch.nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_sizes_count_what_remains() -> None:
    base = tiny.model()
    layers = layers_of(base)
    base_sizes = efficiency.measure_sizes(base)
    assert base_sizes["parameters"] == count_parameters(base)
    assert base_sizes["weights_bytes"] == 4 * count_parameters(base)

    cut = materialise(base, {"units": ["1", "2.attention", "3.mlp"]})
    cut_sizes = efficiency.measure_sizes(cut)
    n_removed = count_parameters(layers[1], layers[2].self_attn, layers[3].mlp)
    assert cut_sizes["parameters"] == base_sizes["parameters"] - n_removed

    # Keys and values of 2 heads of 8 numbers in 4 bytes, in each layer with attention.
    kv_bytes_per_layer = 2 * 2 * 8 * 4
    assert base_sizes["kv_bytes_per_token"] == 5 * kv_bytes_per_layer
    assert cut_sizes["kv_bytes_per_token"] == 3 * kv_bytes_per_layer


# Half of the layers or more have convolutions, state spaces or linear attention.
HYBRID_FAMILIES = ["lfm3", "lfm2_moe", "minimax"]


@pytest.mark.parametrize(
    "family",
    slow_except(["lfm3", "gemma4_unified_text"], [*HYBRID_FAMILIES, "gemma4_unified_text"]),
)
@pytest.mark.parametrize("removed_units", [[], ["1"], ["4"]])
def test_kv_bytes_are_what_a_token_adds_to_a_real_cache(
    family: str, removed_units: list[str]
) -> None:
    base = configurations.model(family)
    model = materialise(base, {"units": removed_units}) if removed_units else base

    # Two and three tokens fit into every window.
    n_bytes = count_cache_bytes(model, 3) - count_cache_bytes(model, 2)

    assert efficiency.kv_bytes_per_token(model) == n_bytes


@torch.no_grad()
def count_cache_bytes(model: PreTrainedModel, n_tokens: int) -> int:
    """Bytes of the keys and values after a text."""
    cache = model(tiny.tokens(1, n_tokens), use_cache=True).past_key_values
    n_bytes = 0
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            n_bytes += layer.keys.nbytes + layer.values.nbytes
    return n_bytes


def test_sizes_count_patches() -> None:
    base = tiny.model()
    plan = {"units": ["1"]}
    patched = materialise(base, plan, {(1, 2): Patch(torch.zeros(32, 32))})
    n_without = efficiency.measure_sizes(materialise(base, plan))["parameters"]
    assert efficiency.measure_sizes(patched)["parameters"] == n_without + 32 * 32


@pytest.mark.parametrize(
    "family", slow_except(["llama", "gpt2"], ["llama", "bloom", "gpt2", "gemma3_text"])
)
def test_efficiency_measures_each_variant_against_the_base(family: str) -> None:
    """So many layers are removed that the variant is faster on a busy machine too."""
    base = tiny.model(family, depth=14)
    removed_units = [str(layer) for layer in range(1, 13)]
    variants = [
        ({"removed": 0}, materialise(base, None)),
        ({"removed": 12}, materialise(base, {"units": removed_units})),
    ]
    options = Efficiency(prompt=16, generate=4, batch=2, repeats=7)

    rows = efficiency.measure_efficiency(base, variants, options)

    for row in rows:
        assert row["latency_ms"] > 0
        assert row["tokens_per_second"] > 0
        assert row["latency_ratio_stderr"] >= 0
        assert row["device"] == "cpu"
        assert row["peak_memory_bytes"] is None
        assert row["peak_memory_ratio"] is None
    base_row, cut_row = rows
    assert base_row["parameters_ratio"] == 1
    assert cut_row["parameters_ratio"] < 1
    assert cut_row["latency_ratio"] < 1
    assert cut_row["tokens_per_second_ratio"] > 1
    parquet.from_rows("efficiency", rows)


def test_every_pair_of_prompt_and_batch_is_timed_and_the_first_is_the_main_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each with sequences of its own shape, which no other pair has."""
    base = tiny.model()
    cut = materialise(base, {"units": ["1"]})
    timed_shapes = []

    def time_shape(model: Any, prompt: torch.Tensor, n_generated: int) -> efficiency.Timing:
        """A prompt of n tokens takes n seconds, and half of that without a layer."""
        timed_shapes.append(tuple(prompt.shape))
        seconds = prompt.numel() * (0.5 if model is cut else 1)
        return efficiency.Timing(seconds, n_generated / seconds, None)

    monkeypatch.setattr(efficiency, "_time", time_shape)
    options = Efficiency(prompt=[16, 4], batch=[1, 3], generate=2, repeats=2)
    keys = [{"removed": 0, "timed": "base"}, {"removed": 1, "timed": "cut"}]
    rows = efficiency.measure_efficiency(base, zip(keys, (base, cut), strict=True), options)

    loads = [(16, 1), (16, 3), (4, 1), (4, 3)]
    assert [(row["removed"], row["prompt"], row["batch"]) for row in rows] == [
        (removed, *load) for removed in (0, 1) for load in loads
    ]
    assert [row["main"] for row in rows] == [True, False, False, False] * 2
    for row in rows:
        n_tokens = row["prompt"] * row["batch"]
        is_cut = row["removed"] == 1
        assert row["latency_ms"] == 1000 * n_tokens * (0.5 if is_cut else 1)
        assert row["latency_ratio"] == pytest.approx(0.5 if is_cut else 1)
        assert row["tokens_per_second_ratio"] == pytest.approx(2 if is_cut else 1)
        assert (row["generate"], row["repeats"]) == (2, 2)
    assert set(timed_shapes) == {(batch, prompt) for prompt, batch in loads}
    parquet.from_rows("efficiency", rows)


def test_ratios_are_geometric_means_over_pairs_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of each model is a warm-up. Peaks of memory come on top of the weights."""
    base = tiny.model()
    cut = materialise(base, {"units": ["1"]})
    base_seconds = iter([1.0, 1.0, 2.0, 4.0])
    cut_seconds = iter([1.0, 0.5, 1.5, 1.0])

    def time_run(model: Any, prompt: torch.Tensor, n_generated: int) -> efficiency.Timing:
        seconds = next(base_seconds if model is base else cut_seconds)
        return efficiency.Timing(seconds, 8 / seconds, 1000 if model is base else 600)

    monkeypatch.setattr(efficiency, "_time", time_run)
    options = Efficiency(prompt=4, batch=1, generate=2, repeats=3)

    [row] = efficiency.measure_efficiency(base, [({}, cut)], options)

    logarithms = np.log([0.5, 0.75, 0.25])
    ratio = np.exp(logarithms.mean())
    stderr = ratio * logarithms.std(ddof=1) / 3**0.5
    assert row["latency_ms"] == 1000
    assert row["latency_ratio"] == pytest.approx(ratio)
    assert row["latency_ratio_stderr"] == pytest.approx(stderr)
    assert row["tokens_per_second"] == pytest.approx(8)
    assert row["tokens_per_second_ratio"] == pytest.approx(1 / ratio)
    assert row["tokens_per_second_ratio_stderr"] == pytest.approx(stderr / ratio**2)
    base_bytes = efficiency.measure_sizes(base)["weights_bytes"]
    cut_bytes = efficiency.measure_sizes(cut)["weights_bytes"]
    assert row["peak_memory_bytes"] == cut_bytes + 600
    assert row["peak_memory_ratio"] == pytest.approx((cut_bytes + 600) / (base_bytes + 1000))
    assert row["weights_bytes_ratio"] == pytest.approx(cut_bytes / base_bytes)
    assert row["kv_bytes_per_token_ratio"] == pytest.approx(4 / 5)


def test_variants_of_the_same_structure_are_timed_once() -> None:
    """Other numbers in a patch or in a layer cost nothing; one more patch does."""
    base = tiny.model()
    one_run = {"units": ["1", "2"]}
    two_runs = {"units": ["1", "3"]}

    def constant_patch(value: float) -> Patch:
        return Patch(torch.full((32, 32), value))

    variants = {
        "bare": materialise(base, one_run),
        "bare, two runs": materialise(base, two_runs),
        "patched": materialise(base, one_run, {(1, 3): constant_patch(0)}),
        "patched with ones": materialise(base, one_run, {(1, 3): constant_patch(1)}),
        "patched twice": materialise(
            base, two_runs, {(1, 2): constant_patch(1), (3, 4): constant_patch(1)}
        ),
        "without mlps": materialise(base, {"units": ["1.mlp", "2.mlp"]}),
        "without attentions": materialise(base, {"units": ["1.attention", "2.attention"]}),
    }
    labelled_variants = (
        ({"repair": name, "timed": name}, variant) for name, variant in variants.items()
    )

    options = Efficiency(prompt=4, generate=2, repeats=2)
    rows = efficiency.measure_efficiency(base, labelled_variants, options)

    timed_as = {row["repair"]: row["timed"] for row in rows}
    assert timed_as == {
        "bare": "bare",
        "bare, two runs": "bare",
        "patched": "patched",
        "patched with ones": "patched",
        "patched twice": "patched twice",
        "without mlps": "without mlps",
        "without attentions": "without attentions",
    }
    latency = {row["repair"]: row["latency_ms"] for row in rows}
    assert latency["patched with ones"] == latency["patched"]
    assert latency["patched twice"] != latency["patched"]


def layers_of_two_sizes() -> Any:
    """A model whose layer 1 is dense, and whose other layers have experts."""
    config = Qwen2MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts=8,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        mlp_only_layers=[1],
    )
    return Qwen2MoeForCausalLM(config).eval()


def layers_of_two_types() -> Any:
    """A model whose layer 1 has full attention, and whose other layers have a window."""
    layer_types = ["sliding_attention"] * 4
    layer_types[1] = "full_attention"
    return tiny.model("gemma3_text", depth=4, layer_types=layer_types)


@pytest.mark.parametrize("make_model", [layers_of_two_sizes, layers_of_two_types])
@pytest.mark.parametrize("component", ["", ".attention"])
def test_layers_of_another_size_or_type_are_timed_for_themselves(
    make_model: Callable[[], Any], component: str
) -> None:
    base = make_model()
    variants = []
    for layer in ("0", "1", "2", "3"):
        plan = {"units": [layer + component]}
        variants.append(({"removed": 1, "timed": layer}, materialise(base, plan)))
    options = Efficiency(prompt=4, generate=2, repeats=2)

    rows = efficiency.measure_efficiency(base, variants, options)

    assert [row["timed"] for row in rows] == ["0", "1", "0", "0"]
    n_base = sum(parameter.numel() for parameter in base.parameters())
    for row, (_, variant) in zip(rows, variants, strict=True):
        n_left = sum(parameter.numel() for parameter in variant.parameters())
        assert row["parameters_ratio"] == pytest.approx(n_left / n_base)


def test_one_generated_token_has_no_speed() -> None:
    """Its time is that of the prompt; tokens per second count those after it."""
    base = tiny.model()
    options = Efficiency(prompt=4, generate=1, repeats=2)

    [row] = efficiency.measure_efficiency(base, [({}, base)], options)

    assert math.isnan(row["tokens_per_second_ratio"])
    assert math.isnan(row["tokens_per_second_ratio_stderr"])
    assert row["latency_ratio_stderr"] >= 0


def test_one_cache_exists_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the peak of GPU memory counts the prompt twice."""
    caches: WeakSet[Any] = WeakSet()
    n_alive: list[int] = []
    model = tiny.model()
    forward = model.forward

    def count_caches(**inputs: Any) -> Any:
        output = forward(**inputs)
        caches.add(output.past_key_values)
        n_alive.append(len(caches))
        return output

    monkeypatch.setattr(model, "forward", count_caches)
    efficiency.measure_efficiency(model, [({}, model)], Efficiency(prompt=4, generate=3, repeats=2))

    assert set(n_alive) == {1}


def published_perplexity(
    model: Any, tokenizer: Any, texts: list[str], window: int, separator: str
) -> float:
    """The script of the papers on pruning (GPTQ, SparseGPT, SliceGPT, ShortGPT), in this form."""
    token_ids = tokenizer(separator.join(texts), return_tensors="pt")["input_ids"]
    n_windows = token_ids.numel() // window
    cross_entropy = torch.nn.CrossEntropyLoss()
    nlls = []
    for index in range(n_windows):
        batch = token_ids[:, index * window : (index + 1) * window]
        with torch.no_grad():
            logits = model(batch).logits
        predictions = logits[:, :-1, :].reshape(-1, logits.size(-1)).float()
        loss = cross_entropy(predictions, batch[:, 1:].reshape(-1))
        nlls.append(loss.float() * window)
    return float(torch.exp(torch.stack(nlls).sum() / (n_windows * window)))


@pytest.mark.parametrize(("separator", "window"), [("\n\n", 16), (" w1 ", 64)])
def test_joined_perplexity_is_that_of_the_papers_script(
    tmp_path: Path, separator: str, window: int
) -> None:
    """Documents of white space are part of the stream; the error bar is over blocks of windows."""
    generator = random.Random(0)
    texts = []
    for _ in range(60):
        texts.append(" ".join(generator.choices(tiny.WORDS, k=generator.randint(0, 40))))
    assert "" in texts
    file = tmp_path / "a.json"
    file.write_text(json.dumps(texts))
    options = TextEntry(text=str(file), window=window, joined=separator)
    tokenizer = tiny.tokenizer()
    variants = some_variants()[:2]

    read_texts = perplexity_texts(options, tmp_path)
    benchmark = perplexity.PerplexityBenchmark("joined", read_texts, tokenizer, options)

    assert read_texts == texts
    n_windows = len(tokenizer(separator.join(texts))["input_ids"]) // window
    for variant in variants:
        rows, blocks = benchmark.score(variant, "x", Together(variants[0], {}))
        (row,) = [row for row in rows if row["metric"] == "perplexity"]
        expected = published_perplexity(variant, tokenizer, texts, window, separator)
        assert row["value"] == pytest.approx(expected, rel=1e-5)
        assert row["stderr"] > 0
        assert row["n_samples"] == len(blocks) == min(30, n_windows)
        assert repr(separator) in row["task_version"]
        assert_blocks_add_up(
            row, blocks, perplexity.joined_windows(texts, tokenizer, window, separator)
        )


def assert_blocks_add_up(
    row: Mapping[str, Any],
    blocks: list[dict[str, Any]],
    windows: list[perplexity.Window],
) -> None:
    """Blocks have nearly the same number of windows, and their weighted mean is the mean."""
    sizes = [0] * len(blocks)
    for window in windows:
        sizes[window.document] += 1
    total = sum(size * block["value"] for size, block in zip(sizes, blocks, strict=True))
    assert math.log(row["value"]) == pytest.approx(total / len(windows), rel=1e-5)
    assert max(sizes) - min(sizes) <= 1


def test_a_window_longer_than_all_joined_documents_is_refused() -> None:
    message = "joined documents have 2 tokens. Write a window of at most 2"
    with pytest.raises(LaminaError, match=message):
        perplexity.joined_windows(["w1", "w2"], tiny.tokenizer(), 8, "\n\n")

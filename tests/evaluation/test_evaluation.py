"""Benchmarks of many variants in one process give what the stock tools give for each alone."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina import paths
from lamina.data.documents import perplexity_texts
from lamina.data.lm_tasks import task_object
from lamina.data.task_groups import DatasetTask
from lamina.errors import LaminaError
from lamina.evaluation import assembly, efficiency, perplexity
from lamina.evaluation.tasks import TaskBenchmark
from lamina.evaluation.together import Together
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options.benchmarks import Efficiency, TextEntry
from lamina.store import parquet
from lamina.variant import Variant
from tests.given import tiny
from tests.given.tasks import evaluate_with_lm_eval, make_task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty questions with choices of one to three words."""
    draw, path = random.Random(0), tmp_path_factory.mktemp("task") / "questions.jsonl"
    records = []
    for _ in range(40):
        query, firsts = (
            " ".join(draw.choices(tiny.WORDS, k=draw.randint(3, 12))),
            draw.sample(tiny.WORDS, 4),
        )
        choices = [
            " ".join([first, *draw.choices(tiny.WORDS, k=draw.randint(0, 2))]) for first in firsts
        ]
        records.append({"query": query, "choices": choices, "gold": draw.randrange(4)})
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def generation_task() -> DatasetTask:
    """A task whose answer is generated, with few-shot examples from a train split."""
    draw = random.Random(1)
    splits = {
        name: [{"q": " ".join(draw.choices(tiny.WORDS, k=4)), "a": "w1"} for _ in range(12)]
        for name in ("train", "test")
    }
    keys: dict[str, Any] = {
        "training_split": "train",
        "fewshot_split": "train",
        "test_split": "test",
    }
    keys["generation_kwargs"] = {"until": ["w5"], "max_gen_toks": 4, "do_sample": False}
    keys["metric_list"] = [
        {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    ]
    return make_task(
        splits, "generate_until", task="generated", doc_to_target="{{a}}", num_fewshot=2, **keys
    )


def some_variants() -> list[Any]:
    base = tiny.model()
    operator = Patch(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) / 20)
    plans = [None, {"units": ["2"]}, {"units": ["4", "1"]}, {"units": ["0.attention"]}]
    return [materialise(base, plan) for plan in plans] + [
        materialise(base, {"units": ["2"]}, {(2, 3): operator})
    ]


@pytest.mark.parametrize("limit", [None, 15])
def test_choice_scores_equal_stock_lm_eval_on_each_cut_model(
    questions: Path, limit: int | None
) -> None:
    models = some_variants()[: 2 if limit else None]
    task = task_object("mine", ROOT, 0, str(questions))
    benchmark = TaskBenchmark(task, models[0], tiny.tokenizer(), limit)
    scored = [benchmark.score(model, "x") for model in models]
    for model, ours in zip(models, scored, strict=True):
        theirs = evaluate_with_lm_eval(model, task_object("mine", ROOT, 0, str(questions)), limit)
        assert {row["metric"] for row in ours.metrics} == {"acc", "acc_norm"}
        for row in ours.metrics:
            metric = row["metric"]
            assert row["value"] == theirs["results"]["mine"][f"{metric},none"]
            assert row["stderr"] == theirs["results"]["mine"][f"{metric}_stderr,none"]
            assert row["n_samples"] == (limit or 40) and row["higher_is_better"]
            kept = [sample["value"] for sample in ours.samples if sample["metric"] == metric]
            assert kept == [sample[metric] for sample in theirs["samples"]["mine"]]
    assert len({tuple(sample["value"] for sample in ours.samples) for ours in scored}) > 1
    parquet.from_rows("benchmarks", scored[0].metrics, model="m")
    parquet.from_rows("benchmark_samples", scored[0].samples, model="m")


def test_generated_answers_equal_stock_lm_eval_on_each_cut_model() -> None:
    models = some_variants()
    benchmark = TaskBenchmark(generation_task(), models[0], tiny.tokenizer())
    for model in models:
        ours, theirs = benchmark.score(model, "x"), evaluate_with_lm_eval(model, generation_task())
        (row,) = ours.metrics
        assert (row["metric"], row["n_shot"], row["n_samples"]) == ("exact_match", 2, 12)
        assert row["value"] == theirs["results"]["generated"]["exact_match,none"]
        mine = sorted(str(instance.resps) for instance in benchmark.task.instances)
        assert mine == sorted(str(sample["resps"][0]) for sample in theirs["samples"]["generated"])


def test_a_variant_that_gives_nan_is_named(questions: Path) -> None:
    model = tiny.model()
    choice = TaskBenchmark(task_object("mine", ROOT, 0, str(questions)), model, tiny.tokenizer(), 4)
    generation = TaskBenchmark(generation_task(), model, tiny.tokenizer(), 4)
    cut = perplexity.split_windows(["w1 w2 w3"], tiny.tokenizer(), 8)
    with torch.no_grad():
        layers_of(model)[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(
        LaminaError, match="the variant q gives NaN during the evaluation of a task"
    ):
        choice.score(model, "the variant q")
    with pytest.raises(LaminaError, match="the variant q gives NaN during the generation"):
        generation.score(model, "the variant q")
    with pytest.raises(
        LaminaError, match="the variant q gives NaN during the evaluation of perplexity"
    ):
        perplexity.document_nll(model, cut, 1, "the variant q")


def documents() -> list[str]:
    draw = random.Random(2)
    return [" ".join(draw.choices(tiny.WORDS, k=length)) for length in (30, 5, 1, 17, 8, 24, 2)]


@torch.no_grad()
def plain_nll(model: Any, text: str, window: int, stride: int) -> list[float]:
    """The sliding-window recipe, one window at a time, without batches or padding."""
    ids = torch.tensor([tiny.tokenizer()(text)["input_ids"]])
    total, count, done = 0.0, 0, 1
    for start in range(0, ids.shape[1] - 1, stride):
        end = min(start + window + 1, ids.shape[1])
        logs = model(ids[:, start : end - 1]).logits.log_softmax(-1)
        for position in range(done, end):
            total -= float(logs[0, position - start - 1, ids[0, position]])
            count += 1
        done = end
        if end == ids.shape[1]:
            break
    return [total, count]


@pytest.mark.parametrize(("window", "stride"), [(64, 64), (8, 8), (8, 3)])
@pytest.mark.parametrize("family", ["llama", "bloom", "opt"])
def test_perplexity_is_the_plain_recipe_and_scores_each_token_once(
    family: str, window: int, stride: int
) -> None:
    model, texts = tiny.model(family), documents()
    cut = perplexity.split_windows(texts, tiny.tokenizer(), window, stride)
    scores = perplexity.document_nll(model, cut, len(texts), "x")
    expected = [plain_nll(model, text, window, stride) for text in texts]
    nll, tokens = zip(*scores, strict=True)
    assert (
        list(tokens)
        == [count for _, count in expected]
        == [max(0, len(text.split()) - 1) for text in texts]
    )
    assert list(nll) == pytest.approx([total for total, _ in expected], rel=1e-4)
    rows = {row["metric"]: row for row in perplexity.metric_rows(scores, tiny.VOCABULARY)}
    mean = sum(nll) / sum(tokens)
    assert rows["nll"]["value"] == pytest.approx(mean) and rows["nll"]["n_samples"] == 6
    assert rows["perplexity"]["value"] == pytest.approx(math.exp(mean))
    assert rows["perplexity"]["stderr"] == pytest.approx(math.exp(mean) * rows["nll"]["stderr"])
    assert rows["nll_per_log_vocabulary"]["value"] == pytest.approx(
        mean / math.log(tiny.VOCABULARY)
    )


def test_sizes_count_what_is_left() -> None:
    base = tiny.model()
    whole = efficiency.measure_sizes(base)
    assert (
        whole["parameters"]
        == sum(p.numel() for p in base.parameters())
        == whole["weights_bytes"] / 4
    )
    assert whole["kv_bytes_per_token"] == 5 * 2 * 2 * 8 * 4
    cut = efficiency.measure_sizes(materialise(base, {"units": ["1", "2.attention", "3.mlp"]}))
    assert cut["kv_bytes_per_token"] == 3 * 2 * 2 * 8 * 4
    layer = layers_of(base)[1]
    lost = [layer, layers_of(base)[2].self_attn, layers_of(base)[3].mlp]
    assert whole["parameters"] - cut["parameters"] == sum(
        p.numel() for part in lost for p in part.parameters()
    )
    patched = efficiency.measure_sizes(
        materialise(base, {"units": ["1"]}, {(1, 2): Patch(torch.zeros(32, 32))})
    )
    assert (
        patched["parameters"]
        == efficiency.measure_sizes(materialise(base, {"units": ["1"]}))["parameters"] + 32 * 32
    )


@pytest.mark.parametrize("family", ["llama", "bloom", "gpt2", "gemma3_text"])
def test_efficiency_measures_each_variant_against_the_base(family: str) -> None:
    # So much goes that the rest is faster on a busy machine too.
    base = tiny.model(family, depth=14)
    cut = materialise(base, {"units": [str(layer) for layer in range(1, 13)]})
    pairs = [({"removed": 0}, materialise(base, None)), ({"removed": 12}, cut)]
    rows = efficiency.measure_efficiency(
        base, pairs, Efficiency(prompt=16, generate=4, batch=2, repeats=7)
    )
    parquet.from_rows("efficiency", rows)
    assert [row["parameters_ratio"] < 1 for row in rows] == [False, True]
    for row in rows:
        assert (
            row["latency_ms"] > 0
            and row["tokens_per_second"] > 0
            and row["latency_ratio_stderr"] >= 0
        )
        assert (
            row["device"] == "cpu"
            and row["peak_memory_bytes"] is None
            and row["peak_memory_ratio"] is None
        )
    assert rows[1]["tokens_per_second_ratio"] > 1 > rows[1]["latency_ratio"]


def test_variants_that_are_built_alike_are_timed_once() -> None:
    """Other numbers in a patch or in a layer cost nothing; one more patch does."""
    base = tiny.model()
    near, apart = {"units": ["1", "2"]}, {"units": ["1", "3"]}
    made = {
        "none": materialise(base, near),
        "ghost": materialise(base, near, {(1, 3): Patch(torch.zeros(32, 32))}),
        "kept": materialise(base, near, {(1, 3): Patch(torch.ones(32, 32))}),
        "trained": materialise(base, apart, adapter=None),
        "two": materialise(
            base, apart, {(1, 2): Patch(torch.ones(32, 32)), (3, 4): Patch(torch.ones(32, 32))}
        ),
        "halves": materialise(base, {"units": ["1.mlp", "2.mlp"]}),
        "others": materialise(base, {"units": ["1.attention", "2.attention"]}),
    }
    named = (({"repair": name, "timed": f"m/{name}"}, variant) for name, variant in made.items())
    rows = efficiency.measure_efficiency(base, named, Efficiency(prompt=4, generate=2, repeats=2))
    timed = {name: f"m/{name}" for name in made} | {"kept": "m/ghost", "trained": "m/none"}
    assert {row["repair"]: row["timed"] for row in rows} == timed
    times = {row["repair"]: row["latency_ms"] for row in rows}
    assert times["kept"] == times["ghost"] != times["two"]


def written(results: Path, selector: str, units: list[str], removed: int) -> Variant:
    """A variant whose plan stands in the results folder; without units it was refused."""
    variant = Variant("m", "c", selector, removed)
    kind = units[0].partition(".")[2] or "layer" if units else "layer"
    text = json.dumps(
        {
            "units": units,
            "removed": removed,
            "kind": kind,
            "refused": None if units else "at chance",
        }
    )
    parquet.write_text(paths.plan(variant.key, removed, results), text)
    return variant


def test_one_variant_is_timed_per_cost_and_a_ghost_costs_once_per_run(tmp_path: Path) -> None:
    """Plan, sizes and runs: what each variant adds to the forward pass, counted by hand."""
    together, apart = written(tmp_path, "a", ["1", "2"], 2), written(tmp_path, "b", ["1", "3"], 2)
    elsewhere, refused = written(tmp_path, "d", ["2", "3"], 2), written(tmp_path, "e", [], 2)
    halves = written(tmp_path, "f", ["1.mlp", "2.mlp"], 2)
    wanted = [Variant.base("m")]
    for variant in (together, apart, elsewhere, refused, halves):
        wanted += [
            variant,
            replace(variant, repair="ghost"),
            replace(variant, repair="ghost", healing="lora"),
        ]
    plan_files = {
        variant: paths.VariantFiles(paths.variant_files(variant, tmp_path).plan, None, None)
        for variant in wanted
    }
    chosen = efficiency.one_per_cost(assembly.read_plans(plan_files))
    counted = {wanted[0]: 0, together: 1, halves: 2, replace(together, repair="ghost"): 1}
    assert chosen == counted | {
        replace(apart, repair="ghost"): 2,
        replace(halves, repair="ghost"): 2,
    }


def published(model: Any, tokenizer: Any, texts: list[str], window: int, between: str) -> float:
    """The script of the papers on pruning (GPTQ, SparseGPT, SliceGPT, ShortGPT), in this form."""
    encoded = tokenizer(between.join(texts), return_tensors="pt")["input_ids"]
    count, nlls = encoded.numel() // window, []
    for number in range(count):
        batch = encoded[:, number * window : (number + 1) * window]
        with torch.no_grad():
            logits = model(batch).logits
        loss = torch.nn.CrossEntropyLoss()(
            logits[:, :-1, :].reshape(-1, logits.size(-1)).float(), batch[:, 1:].reshape(-1)
        )
        nlls.append(loss.float() * window)
    return float(torch.exp(torch.stack(nlls).sum() / (count * window)))


@pytest.mark.parametrize(("between", "window"), [("\n\n", 16), (" w1 ", 64)])
def test_joined_perplexity_is_that_of_the_papers_script(
    tmp_path: Path, between: str, window: int
) -> None:
    """Documents of white space are part of the stream; the error bar is over blocks of windows."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(tiny.WORDS, k=draw.randint(0, 40))) for _ in range(60)]
    (tmp_path / "a.json").write_text(json.dumps(texts))
    options = TextEntry(text=str(tmp_path / "a.json"), window=window, joined=between)
    read = perplexity_texts(options, tmp_path)
    assert read == texts and "" in texts
    models = some_variants()[:2]
    score, tokenizer = (
        perplexity.open_benchmark("joined", read, tiny.tokenizer(), options),
        tiny.tokenizer(),
    )
    for model in models:
        rows, samples = score(model, "x", Together(models[0], {}))
        (row,) = [row for row in rows if row["metric"] == "perplexity"]
        assert row["value"] == pytest.approx(
            published(model, tokenizer, texts, window, between), rel=1e-5
        )
        windows = len(tokenizer(between.join(texts))["input_ids"]) // window
        assert row["n_samples"] == len(samples) == min(30, windows)
        # Blocks in order, so that the mean over tokens is that of their sums.
        cut = perplexity.joined_windows(texts, tokenizer, window, between)
        sizes = [sum(each.document == block for each in cut) for block in range(len(samples))]
        mean = (
            sum(size * sample["value"] for size, sample in zip(sizes, samples, strict=True))
            / windows
        )
        assert (
            math.log(row["value"]) == pytest.approx(mean, rel=1e-5) and max(sizes) - min(sizes) <= 1
        )
        assert row["stderr"] > 0 and repr(between) in row["task_version"]
    with pytest.raises(
        LaminaError, match="joined documents have 2 tokens. Write a window of at most 2"
    ):
        perplexity.joined_windows(["w1", "w2"], tokenizer, 8, "\n\n")

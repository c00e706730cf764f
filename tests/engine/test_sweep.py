"""The engine gives the same numbers as evaluating, one by one, models whose units were really cut out."""

import copy
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lamina.data import encoding, lm_tasks
from lamina.data.calibrations import Row, Sample
from lamina.engine import readings, sweep
from lamina.engine.capture import capture_similarities
from lamina.errors import LaminaError
from lamina.models.surgery import remove_units
from lamina.models.units import all_units
from tests.given import tiny
from tests.given.slow import slow_but

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "resources/reference"

# Samples whose two best choices are closer than this may be decided by rounding, and are counted apart.
NEAR_TIE = 1e-4


def random_samples(
    seed: int, count: int = 12, kinds: tuple[str, ...] = ("choices",)
) -> list[Sample]:
    """Documents of random lengths; some choices share their first tokens, some are one token long."""
    draw = random.Random(seed)

    def words(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, tiny.VOCABULARY) for _ in range(draw.randint(low, high)))

    samples = []
    for index in range(count):
        kind, context = draw.choice(kinds), words(1, 14)
        start = words(0, 2)
        rows = [
            Row(context, start + words(1, 4), draw.randint(1, 9)) for _ in range(draw.randint(2, 5))
        ]
        gold = draw.randrange(len(rows))
        if kind != "choices":
            rows, gold = rows[:1], 0
        samples.append(Sample(index, kind, gold, tuple(rows), str(index)))
    return samples


@torch.inference_mode()
def naive(model: PreTrainedModel, samples: list[Sample], units: list[str]) -> np.ndarray:
    """Log-likelihood of every row, one row at a time, by a model whose units are really gone."""
    cut = remove_units(copy.deepcopy(model), units) if units else model
    scores = []
    for sample in samples:
        for row in sample.rows:
            logits = (
                cut(torch.tensor([row.context + row.continuation]), use_cache=False)
                .logits[0]
                .log_softmax(-1)
            )
            first = len(row.context) - 1
            scores.append(
                sum(float(logits[first + i, token]) for i, token in enumerate(row.continuation))
            )
    return np.array(scores)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("kind", slow_but(["layer"], ["layer", "attention", "mlp"]))
def test_every_removal_of_every_family_equals_the_cut_model(family: str, kind: str) -> None:
    model = tiny.model(family)
    samples = random_samples(1)
    units = all_units(5, kind)
    scores = sweep.sweep_units(model, samples, units, token_budget=400)
    for unit in ["none", *units]:
        expected = naive(model, samples, [] if unit == "none" else [unit])
        assert np.abs(scores.loglikelihood[scores.index[unit]] - expected).max() < NEAR_TIE, unit


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_halves_of_both_kinds_go_from_a_model_without_some_as_from_a_cut_model(family: str) -> None:
    """One of the halves that go leaves its layer without any. In gpt_neox both halves read the layer's input."""
    model, samples, removed = tiny.model(family), random_samples(1), ["1.mlp", "3.attention"]
    units = all_units(5, "both", removed)
    scores = sweep.sweep_units(model, samples, units, removed, token_budget=400)
    for unit in ["none", *units]:
        expected = naive(model, samples, [*removed, *([] if unit == "none" else [unit])])
        assert np.abs(scores.loglikelihood[scores.index[unit]] - expected).max() < NEAR_TIE, unit


@pytest.mark.parametrize("removed", [[], ["2"]])
@pytest.mark.parametrize(
    ("family", "cached"), [("llama", 1), ("llama", 1 << 19), ("gemma2", 1), ("bloom", 300)]
)
def test_output_metrics_compare_with_the_unpruned_model(
    family: str, cached: int, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against loops over positions, logits being read one place at a time, a few or all at once.

    At a later step too, the distance is to the base model's output.
    """
    monkeypatch.setattr(readings, "CACHED", cached)
    model, samples = tiny.model(family), random_samples(5, count=6, kinds=("choices", "generated"))
    scores = sweep.sweep_units(model, samples, ["0", "4"], removed)
    cut = remove_units(copy.deepcopy(model), [*removed, "4"])
    rows, flips = {row["sample"]: row for row in scores.rows(["4"])}, 0.0
    for sample in samples:
        # Every scored token of every choice once, whether rows share their context or not (ALiBi families share none).
        found: list[list[float]] = []
        for row in sample.rows:
            tokens = torch.tensor([row.context + row.continuation[:-1]])
            with torch.inference_mode():
                base, other = (
                    m(tokens, use_cache=False).logits[0].double().numpy() for m in (model, cut)
                )
            for at in range(len(row.context) - 1, tokens.shape[1]):
                found.append(distances(base[at], other[at]))
        expected = np.mean(found, axis=0)
        assert expected[:-1].min() > 1e-4
        flips += expected[-1]
        measured = [rows[sample.index][name] for name in DISTANCES]
        assert measured == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert flips > 0


DISTANCES = ("output_cosine", "output_norm", "output_kl", "output_js", "output_tv", "output_flips")


def distances(base: np.ndarray, other: np.ndarray) -> list[float]:
    """What DISTANCES names, of two vectors of logits and by their definitions."""
    p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (base, other))
    middle = (p + q) / 2
    cosine = base @ other / np.sqrt((base @ base) * (other @ other))
    divergence = [float((a * np.log(a / b)).sum()) for a, b in ((p, q), (p, middle), (q, middle))]
    norm, accepted = float(np.sqrt(((base - other) ** 2).sum())), float(np.minimum(p, q).sum())
    flipped = float(base.argmax() != other.argmax())
    return [1 - cosine, norm, divergence[0], sum(divergence[1:]) / 2, 1 - accepted, flipped]


def test_the_stream_metrics_are_those_of_the_gold_row() -> None:
    model, samples = tiny.model(), random_samples(6)
    scores = sweep.sweep_units(model, samples, all_units(5, "layer"), pass_="stream")
    captured = capture_similarities(model, [sample.sequence() for sample in samples])
    for layer in range(5):
        row = next(row for row in captured if row["layer"] == layer and row["span"] == 1)
        assert np.mean(scores.cosine[scores.index[str(layer)]]) == pytest.approx(
            row["cosine"], rel=1e-4
        )
        assert np.mean(scores.angular_last[scores.index[str(layer)]]) == pytest.approx(
            row["angular_last"], rel=1e-3
        )


def test_logits_that_are_not_numbers_are_refused() -> None:
    model = tiny.model()
    with torch.no_grad():
        next(model.model.layers[1].parameters()).fill_(float("nan"))
    with pytest.raises(LaminaError, match="not numbers.*dtype: float32"):
        sweep.sweep_units(model, random_samples(8), ["2"])


@pytest.mark.parametrize(
    "name", slow_but(["recall"], ["recall", "facts", "hops", "addition", "comparison", "boolean"])
)
def test_accuracy_of_every_layer_is_what_lm_eval_gives_on_the_cut_model(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    task = lm_tasks.task_object(f"microworld_{name}", ROOT, split="train")
    samples = lm_tasks.task_samples(task, encoding.open_encoder(model, tokenizer), limit=40, seed=0)
    units = all_units(12, "layer")
    scores = sweep.sweep_units(model, samples, units)
    instances = sorted(task.instances, key=lambda instance: (instance.doc_id, instance.idx))
    for unit in ["none", *units]:
        cut = copy.deepcopy(model) if unit == "none" else remove_units(copy.deepcopy(model), [unit])
        answers = HFLM(pretrained=cut, tokenizer=tokenizer, batch_size=64).loglikelihood(
            instances, disable_tqdm=True
        )
        rows = scores.rows([unit])
        for number, row in enumerate(rows):
            mine = [
                answer
                for answer, entry in zip(answers, instances, strict=True)
                if entry.doc_id == number
            ]
            expected = task.process_results(
                next(i.doc for i in instances if i.doc_id == number), mine
            )
            best = sorted((score for score, _ in mine), reverse=True)
            if best[0] - best[1] >= NEAR_TIE:
                assert row["correct"] == bool(expected["acc"]), (unit, number)
                assert row["correct_norm"] == bool(expected["acc_norm"]), (unit, number)

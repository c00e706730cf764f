"""A sweep gives the numbers of evaluating, one by one, models whose units were really cut out."""

import copy
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lamina.data import encoding, lm_tasks
from lamina.data.calibrations import Sample
from lamina.engine import readings, sweep
from lamina.engine.candidates import CURRENT
from lamina.engine.capture import capture_similarities
from lamina.engine.scores import Scores
from lamina.errors import LaminaError
from lamina.models.surgery import apply_edits
from lamina.models.units import all_units
from tests import ROOT
from tests.given import tiny
from tests.given.cut_models import (
    NEAR_TIE,
    naive_loglikelihoods,
    random_samples,
    token_sequences,
)
from tests.given.slow import slow_except
from tests.repairs.test_bypass import record_streams

REFERENCE = ROOT / "resources/reference"


def assert_scores_of_cut_models(
    scores: Scores,
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed_units: Sequence[str] = (),
) -> None:
    """Compare the log-likelihoods of the current model, and without each unit."""
    for unit in (CURRENT, *units):
        cut_units = list(removed_units)
        if unit != CURRENT:
            cut_units.append(unit)
        expected = naive_loglikelihoods(model, samples, cut_units)
        measured = scores.loglikelihood[scores.index[unit]]
        assert np.abs(measured - expected).max() < NEAR_TIE, unit


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
@pytest.mark.parametrize("kind", slow_except(["layer"], ["layer", "attention", "mlp"]))
def test_every_removal_of_every_family_equals_the_cut_model(family: str, kind: str) -> None:
    model = tiny.model(family)
    samples = random_samples(1)
    units = all_units(5, kind)

    scores = sweep.sweep_units(model, samples, units, token_budget=400)

    assert_scores_of_cut_models(scores, model, samples, units)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_sublayers_of_both_kinds_are_removed_after_others_as_from_a_cut_model(family: str) -> None:
    """One of them leaves its layer without any. In gpt_neox both read the layer's input."""
    model = tiny.model(family)
    samples = random_samples(1)
    removed_units = ["1.mlp", "3.attention"]
    units = all_units(5, "both", removed_units)

    scores = sweep.sweep_units(model, samples, units, removed_units, token_budget=400)

    assert_scores_of_cut_models(scores, model, samples, units, removed_units)


def output_distances(base_logits: np.ndarray, cut_logits: np.ndarray) -> dict[str, float]:
    """The distances of two vectors of logits by their definitions, under the names of columns."""
    dot_product = base_logits @ cut_logits
    norms = np.sqrt((base_logits @ base_logits) * (cut_logits @ cut_logits))
    p = np.exp(base_logits) / np.exp(base_logits).sum()
    q = np.exp(cut_logits) / np.exp(cut_logits).sum()
    middle = (p + q) / 2
    return {
        "output_cosine": 1 - dot_product / norms,
        "output_norm": np.sqrt(((base_logits - cut_logits) ** 2).sum()),
        "output_kl": kl_divergence(p, q),
        "output_js": (kl_divergence(p, middle) + kl_divergence(q, middle)) / 2,
        "output_tv": 1 - np.minimum(p, q).sum(),
        "output_flips": float(base_logits.argmax() != cut_logits.argmax()),
    }


def kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * np.log(p / q)).sum())


@torch.inference_mode()
def mean_output_distances(
    base_model: PreTrainedModel, cut_model: PreTrainedModel, sample: Sample
) -> dict[str, float]:
    """Means over every scored token of every choice, each counted once."""
    distances_by_token: list[dict[str, float]] = []
    for row in sample.rows:
        token_ids = torch.tensor([row.context + row.continuation[:-1]])
        base_logits = base_model(token_ids, use_cache=False).logits[0].double().numpy()
        cut_logits = cut_model(token_ids, use_cache=False).logits[0].double().numpy()
        for position in range(len(row.context) - 1, token_ids.shape[1]):
            distances = output_distances(base_logits[position], cut_logits[position])
            distances_by_token.append(distances)
    mean_distances: dict[str, float] = {}
    for column in distances_by_token[0]:
        column_distances = [distances[column] for distances in distances_by_token]
        mean_distances[column] = float(np.mean(column_distances))
    return mean_distances


@pytest.mark.parametrize("removed_units", [[], ["2"]])
@pytest.mark.parametrize(
    ("family", "cached_numbers"), [("llama", 1), ("llama", 1 << 19), ("gemma2", 1), ("bloom", 300)]
)
def test_output_metrics_compare_with_the_unpruned_model(
    family: str, cached_numbers: int, removed_units: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a later step too; whether logits are read one position at a time, a few, or all at once.

    Bloom has ALiBi, so its rows share no context.
    """
    monkeypatch.setattr(readings, "CACHED", cached_numbers)
    model = tiny.model(family)
    samples = random_samples(5, count=6, kinds=("choices", "generated"))

    scores = sweep.sweep_units(model, samples, ["0", "4"], removed_units)

    cut_model = apply_edits(copy.deepcopy(model), [*removed_units, "4"])
    flips = 0.0
    for sample in samples:
        expected = mean_output_distances(model, cut_model, sample)
        row = scores.sample("4", sample.index)
        measured = {column: row[column] for column in expected}
        assert measured == pytest.approx(expected, rel=1e-3, abs=1e-5)
        flips += expected.pop("output_flips")
        assert min(expected.values()) > 1e-4
    assert flips > 0


def test_the_stream_metrics_are_those_of_the_gold_row() -> None:
    model = tiny.model()
    samples = random_samples(6)

    scores = sweep.sweep_units(model, samples, all_units(5, "layer"), pass_="stream")

    captured_rows = capture_similarities(model, token_sequences(samples))
    rows_over_one_layer = [row for row in captured_rows if row["span"] == 1]
    assert len(rows_over_one_layer) == 5
    for row in rows_over_one_layer:
        unit_index = scores.index[str(row["layer"])]
        mean_cosine = np.mean(scores.cosine[unit_index])
        mean_angle = np.mean(scores.angular_last[unit_index])
        assert mean_cosine == pytest.approx(row["cosine"], rel=1e-4)
        assert mean_angle == pytest.approx(row["angular_last"], rel=1e-3)


@pytest.mark.parametrize("kind", ["layer", "attention", "mlp"])
def test_the_stream_metrics_of_each_text_compare_recorded_streams(kind: str) -> None:
    """Those before and after each unit: the mean cosine, and the angle at the last token."""
    model = tiny.model()
    samples = random_samples(6)
    units = all_units(5, kind)

    scores = sweep.sweep_units(model, samples, units, pass_="stream")

    for text_index, token_ids in enumerate(token_sequences(samples)):
        streams = record_streams(model, "llama", list(token_ids))
        for unit in units:
            layer, _, component = unit.partition(".")
            start = int(layer) + (0.5 if component == "mlp" else 0)
            end = int(layer) + (0.5 if component == "attention" else 1)
            cosines = torch.cosine_similarity(
                streams[start].double(), streams[end].double(), dim=-1
            )
            angle = math.acos(float(cosines[-1])) / math.pi
            position = scores.index[unit], text_index
            assert scores.cosine[position] == pytest.approx(float(1 - cosines.mean()), abs=1e-5)
            assert scores.angular_last[position] == pytest.approx(angle, abs=1e-4)


def test_logits_that_are_not_numbers_are_refused() -> None:
    model = tiny.model()
    with torch.no_grad():
        next(model.model.layers[1].parameters()).fill_(float("nan"))

    with pytest.raises(LaminaError, match="logits that are NaN.*dtype: float32"):
        sweep.sweep_units(model, random_samples(8), ["2"])


@pytest.mark.parametrize(
    "name",
    slow_except(["recall"], ["recall", "facts", "hops", "addition", "comparison", "boolean"]),
)
def test_accuracy_of_every_layer_is_what_lm_eval_gives_on_the_cut_model(name: str) -> None:
    """Except where the two best choices are so near that rounding decides."""
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    task = lm_tasks.task_object(f"microworld_{name}", ROOT, split="train")
    encoder = encoding.open_encoder(model, tokenizer)
    samples = lm_tasks.task_samples(task, encoder, limit=40, seed=0)
    units = all_units(12, "layer")

    scores = sweep.sweep_units(model, samples, units)

    instances = sorted(task.instances, key=lambda instance: (instance.doc_id, instance.idx))
    documents = {instance.doc_id: instance.doc for instance in instances}
    for unit in (CURRENT, *units):
        cut_model = copy.deepcopy(model)
        if unit != CURRENT:
            cut_model = apply_edits(cut_model, [unit])
        lm_eval_model = HFLM(pretrained=cut_model, tokenizer=tokenizer, batch_size=64)
        all_answers = lm_eval_model.loglikelihood(instances, disable_tqdm=True)
        for document_index, row in enumerate(scores.rows([unit])):
            answers = [
                answer
                for answer, instance in zip(all_answers, instances, strict=True)
                if instance.doc_id == document_index
            ]
            expected = task.process_results(documents[document_index], answers)
            best, second_best = sorted((score for score, _ in answers), reverse=True)[:2]
            if best - second_best >= NEAR_TIE:
                assert row["correct"] == bool(expected["acc"]), (unit, document_index)
                assert row["correct_norm"] == bool(expected["acc_norm"]), (unit, document_index)

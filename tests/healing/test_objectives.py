"""What a healing minimises, against plain loops in numpy; it depends neither on padding nor on the
split of a batch.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from lamina.data.calibrations import Row, Sample
from lamina.healing import training
from lamina.healing.batches import TrainingSource
from lamina.healing.objectives import Divergence, Objective
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from tests.given import tiny
from tests.healing.examples import PLAN, make_samples

PATCHES = {(2, 3): Patch(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) / 50)}


def mixed_samples() -> list[Sample]:
    """Questions, a text, and texts that a model wrote after a prompt.

    Of the text, all tokens but the first are scored.
    """
    text, *written_texts = make_samples(9, "text")[5:]
    token_ids = text.sequence()
    text_row = Row(token_ids[:1], token_ids[1:], 9)
    return [*make_samples(5), replace(text, rows=(text_row,)), *written_texts]


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max())
    return np.asarray(exponentials / exponentials.sum())


def divergence(teacher: np.ndarray, student: np.ndarray, temperature: float) -> float:
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)) of the logits (V,) of one position."""
    p = softmax(teacher / temperature)
    q = softmax(student / temperature)
    return temperature**2 * float((p * np.log(p / q)).sum())


def compute_logits(model: torch.nn.Module, sample: Sample) -> np.ndarray:
    """The logits (T, V) of one sample alone, without padding."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([sample.sequence()])).logits[0]
    return np.asarray(logits.double().numpy())


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_distillation_is_the_mean_divergence_per_scored_token(temperature: float) -> None:
    base = tiny.model()
    variant = materialise(base, PLAN, PATCHES)
    expected = 0.0
    n_scored = 0
    for sample in mixed_samples():
        student = compute_logits(variant, sample)
        teacher = compute_logits(base, sample)
        first_prediction = len(sample.rows[0].context) - 1
        for position in range(first_prediction, len(sample.sequence()) - 1):
            expected += divergence(teacher[position], student[position], temperature)
            n_scored += 1

    objective = Objective("distill", variant, base, temperature)
    (loss,) = objective.sum_losses(mixed_samples())
    assert objective.count_tokens(mixed_samples()) == [n_scored]
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def sum_nats(model: torch.nn.Module, samples: Sequence[Sample]) -> tuple[float, int]:
    """The nats of the scored tokens of all samples, and their number."""
    nats = 0.0
    n_scored = 0
    for sample in samples:
        logits = compute_logits(model, sample)
        token_ids = sample.sequence()
        for position in range(len(sample.rows[0].context) - 1, len(token_ids) - 1):
            nats -= math.log(softmax(logits[position])[token_ids[position + 1]])
            n_scored += 1
    return nats, n_scored


def test_the_language_model_loss_is_the_nats_of_scored_tokens() -> None:
    variant = materialise(tiny.model(), PLAN, PATCHES)
    nats, n_scored = sum_nats(variant, mixed_samples())

    objective = Objective("lm", variant, variant)

    (loss,) = objective.sum_losses(mixed_samples())
    assert float(loss.detach()) == pytest.approx(nats, rel=1e-5)
    assert objective.count_tokens(mixed_samples()) == [n_scored]


def test_the_validation_loss_weights_the_tokens_of_each_source() -> None:
    variant = materialise(tiny.model(), PLAN, PATCHES)
    questions = mixed_samples()[:5]
    texts = mixed_samples()[5:]
    sources = [TrainingSource(questions, 2.0), TrainingSource(texts, 0.5)]

    loss = training.measure_validation_loss(Objective("lm", variant, variant), sources, 30)

    question_nats, n_in_questions = sum_nats(variant, questions)
    text_nats, n_in_texts = sum_nats(variant, texts)
    weighted_nats = 2 * question_nats + 0.5 * text_nats
    n_weighted = 2 * n_in_questions + 0.5 * n_in_texts
    assert loss == pytest.approx(weighted_nats / n_weighted, rel=1e-5)


def test_the_gradient_of_the_divergence_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    student = torch.randn(3, 7, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    Divergence.apply(student, teacher, 2.0).backward()

    def sum_divergences(student_logits: np.ndarray) -> float:
        rows = zip(teacher.numpy(), student_logits, strict=True)
        return sum(divergence(teacher_row, student_row, 2.0) for teacher_row, student_row in rows)

    logits = student.detach().numpy()
    step = 1e-5
    slopes = []
    for direction in np.eye(logits.size).reshape(-1, *logits.shape):
        above = sum_divergences(logits + step * direction)
        below = sum_divergences(logits - step * direction)
        slopes.append((above - below) / (2 * step))
    assert student.grad is not None
    assert student.grad.flatten().tolist() == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize("name", ["lm", "distill", "lm+hidden"])
def test_neither_padding_nor_the_split_of_a_batch_changes_loss_and_gradient(name: str) -> None:
    samples = mixed_samples()

    def compute(
        sample_groups: list[list[Sample]], max_positions: int
    ) -> tuple[training.BatchLoss, torch.Tensor]:
        """The loss of the samples, and the gradient of one weight."""
        base = tiny.model()
        variant = materialise(base, PLAN, PATCHES)
        for layer in layers_of(variant):
            layer.mlp.up_proj.weight = torch.nn.Parameter(layer.mlp.up_proj.weight.detach().clone())
        objective = Objective.for_plan(name, variant, base, PLAN, 1.0)
        loss = training.accumulate_gradients(objective, sample_groups, max_positions)
        return loss, layers_of(variant)[1].mlp.up_proj.weight.grad

    expected_loss, expected_gradient = compute([samples], 10_000)
    one_part_per_sample = compute([samples], 1)
    two_groups = compute([samples[:5], samples[5:]], 10_000)
    for loss, gradient in (one_part_per_sample, two_groups):
        assert loss.mean == pytest.approx(expected_loss.mean, rel=1e-5)
        assert loss.n_scored == expected_loss.n_scored
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "positions",
    [{(1, 3): 1}, {(1, 2): 1, (3, 4): 2}, {(3, 5): 3}],
    ids=["one run", "two runs", "up to the final norm"],
)
def test_streams_are_compared_after_removed_layers_with_the_patch_applied(
    positions: dict[tuple[int, int], int],
) -> None:
    """`positions` has how many of the variant's layers come before each run of removed layers."""
    base = tiny.model()
    generator = torch.Generator().manual_seed(3)
    units = []
    patches = {}
    for start, end in positions:
        units += [str(layer) for layer in range(start, end)]
        operator = torch.randn(32, 32, generator=generator) / 50
        bias = torch.randn(32, generator=generator) / 9
        patches[start, end] = Patch(operator, bias)
    plan = {"units": units}
    variant = materialise(base, plan, patches)

    expected = 0.0
    for sample in mixed_samples():
        token_ids = torch.tensor([sample.sequence()])
        base_streams = tiny.stream(base, token_ids, layers_of(base))
        variant_streams = tiny.stream(variant, token_ids, layers_of(variant))
        for (start, end), patch in patches.items():
            stream = variant_streams[positions[start, end]][0]
            patched = (stream + stream @ patch.operator + patch.bias).numpy()
            unpruned = base_streams[end][0].numpy()
            distances = ((unpruned - patched) ** 2).sum(1) / (unpruned**2).sum(1)
            expected += float(distances.sum()) / len(patches)

    objective = Objective.for_plan("lm+hidden", variant, base, plan, 1.0)
    _, distance = objective.sum_losses(mixed_samples())
    assert float(distance.detach()) == pytest.approx(expected, rel=1e-4)
    _, n_tokens = objective.count_tokens(mixed_samples())
    assert n_tokens == sum(len(sample.sequence()) for sample in mixed_samples())

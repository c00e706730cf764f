"""What a healing lowers, against plain loops in numpy; and that it depends on no padding and on no split of a batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lamina.data.calibrations import Row, Sample
from lamina.healing import training
from lamina.healing.objectives import Divergence, Objective
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from tests.given import tiny
from tests.healing.test_lora import PLAN, samples

PATCH = {(2, 3): Patch(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) / 50)}


def mixed() -> list[Sample]:
    """Short questions, a text whose first token alone is not scored, and texts that a model wrote behind a prompt."""
    text, *written = samples(9, "text")[5:]
    row = Row(text.sequence()[:1], text.sequence()[1:], 9)
    return [*samples(5), replace(text, rows=(row,)), *written]


def softmax(logits: np.ndarray) -> np.ndarray:
    grown = np.exp(logits - logits.max())
    return np.asarray(grown / grown.sum())


def logits_of(model: torch.nn.Module, sample: Sample) -> np.ndarray:
    """Of one sample alone, without padding."""
    with torch.no_grad():
        return np.asarray(
            model(input_ids=torch.tensor([sample.sequence()])).logits[0].double().numpy()
        )


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_distillation_is_the_mean_divergence_per_scored_token(temperature: float) -> None:
    base = tiny.model()
    variant = materialise(base, PLAN, PATCH)
    total, count = 0.0, 0
    for sample in mixed():
        mine, theirs = logits_of(variant, sample), logits_of(base, sample)
        for position in range(len(sample.rows[0].context) - 1, len(sample.sequence()) - 1):
            p, q = softmax(theirs[position] / temperature), softmax(mine[position] / temperature)
            total, count = total + temperature**2 * float((p * np.log(p / q)).sum()), count + 1
    objective = Objective("distill", variant, base, temperature)
    (found,) = objective.sums(mixed())
    assert objective.counts(mixed()) == [count]
    assert float(found.detach()) == pytest.approx(total, rel=1e-5)


def test_the_gradient_of_the_divergence_is_that_of_finite_differences() -> None:
    draw = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(3, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    student.requires_grad_()
    Divergence.apply(student, teacher, 2.0).backward()

    def value(logits: np.ndarray) -> float:
        pairs = zip(logits, teacher.numpy(), strict=True)
        return sum(
            4 * float((softmax(t / 2) * np.log(softmax(t / 2) / softmax(s / 2))).sum())
            for s, t in pairs
        )

    start, nudges = student.detach().numpy(), 1e-5 * np.eye(21).reshape(-1, 3, 7)
    slopes = [(value(start + each) - value(start - each)) / 2e-5 for each in nudges]
    assert student.grad.flatten().tolist() == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize("name", ["lm", "distill", "lm+hidden"])
def test_neither_padding_nor_the_split_of_a_batch_changes_loss_and_gradient(name: str) -> None:
    base, found = tiny.model(), []
    batch = mixed()
    # In one part, a part for each sample, and two groups that are padded apart.
    for groups, memory in ([batch], 10_000), ([batch], 1), ([batch[:5], batch[5:]], 10_000):
        variant = materialise(base, PLAN, PATCH)
        for layer in layers_of(variant):
            layer.mlp.up_proj.weight = torch.nn.Parameter(layer.mlp.up_proj.weight.detach().clone())
        loss, count = training.backward(
            Objective.of(name, variant, base, PLAN, 1.0), groups, memory
        )
        found.append((loss, count, layers_of(variant)[1].mlp.up_proj.weight.grad))
    for loss, count, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5) and count == found[0][1]
        torch.testing.assert_close(gradient, found[0][2], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "runs",
    [{(1, 3): 1}, {(1, 2): 1, (3, 4): 2}, {(3, 5): 3}],
    ids=["one run", "two runs", "up to the final norm"],
)
def test_streams_are_compared_where_layers_went_with_the_patch_in_place(
    runs: dict[tuple[int, int], int],
) -> None:
    """`runs` tells how many of the variant's layers come before each."""
    base, total = tiny.model(), 0.0
    plan = {"units": [str(layer) for run in runs for layer in range(*run)]}
    draw = torch.Generator().manual_seed(3)
    patches = {
        run: Patch(torch.randn(32, 32, generator=draw) / 50, torch.randn(32, generator=draw) / 9)
        for run in runs
    }
    variant = materialise(base, plan, patches)
    for sample in mixed():
        ids = torch.tensor([sample.sequence()])
        wanted = tiny.stream(base, ids, layers_of(base))
        found = tiny.stream(variant, ids, layers_of(variant))
        for run, patch in patches.items():
            after = found[runs[run]][0] + found[runs[run]][0] @ patch.operator + patch.bias
            for h, mended in zip(wanted[run[1]][0].numpy(), after.numpy(), strict=True):
                total += float(((h - mended) ** 2).sum() / (h**2).sum()) / len(patches)
    objective = Objective.of("lm+hidden", variant, base, plan, 1.0)
    _, distance = objective.sums(mixed())
    assert float(distance.detach()) == pytest.approx(total, rel=1e-4)
    assert objective.counts(mixed())[1] == sum(len(sample.sequence()) for sample in mixed())

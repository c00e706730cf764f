"""The weight of general text that a repair leaves open is the smallest that keeps it.

Against models really cut and patched, on the samples that no patch saw.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina import paths
from lamina.data.calibrations import Row, Sample, read_calibration
from lamina.engine.sources import Source, draw_held_out
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.options.repairs import Repair
from lamina.repairs import protocol, weighing
from lamina.repairs.protocol import Fitted
from lamina.variant import Variant
from tests.given import tiny
from tests.given.cut_models import naive_loglikelihoods, token_sequences
from tests.given.repairs import fit_repair, plan_of, read_parts, write_samples

RUNS_BY_SIZE: dict[int, list[Boundary]] = {1: [(2, 3)], 2: [(2, 3), (4, 5)]}
RIDGE = 1e-7
OPEN_WEIGHTS = {"own": 1, "general": "auto"}
Losses = dict[float | None, float]
"""The mean loss of general text by weight; None for the model without a patch."""


@pytest.mark.parametrize("settings", [{"method": "ghost", "bias": True}, {"method": "linearpatch"}])
@pytest.mark.parametrize("weight", [0.0, 0.1, 3.0])
def test_statistics_of_two_calibrations_add_up_at_any_weight(
    settings: dict[str, Any], weight: float
) -> None:
    model = tiny.model()
    options = Repair.from_options(settings)
    method = protocol.load_method(options.method)
    own_texts = tiny.tokens(20, 9, seed=20).tolist()
    general_texts = tiny.tokens(12, 9, seed=12).tolist()

    def collect(*sources: Source) -> Any:
        ((_, statistics),) = method.collect(model, sources, [(1, 3)], options, 0)
        return statistics

    own_statistics = collect(Source(own_texts))
    general_statistics = collect(Source(general_texts))
    mixed = weighing.mix_statistics(own_statistics, general_statistics, weight)
    fit = method.fit(mixed, options)

    sources = [Source(own_texts)]
    if weight:
        sources.append(Source(general_texts, weight))
    expected = method.fit(collect(*sources), options)
    assert fit.facts == pytest.approx(expected.facts, rel=1e-5)
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(fit.tensors[name], tensor, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def easy_samples() -> list[Sample]:
    """Text that ends in what the cut model predicts."""
    generator = random.Random(5)
    cut_model = materialise(tiny.model(), plan_of(["2", "4"]))
    samples: list[Sample] = []
    for index in range(40):
        length = generator.randint(5, 15)
        context = tuple(generator.randrange(4, 20) for _ in range(length))
        logits = cut_model(torch.tensor([context]), use_cache=False).logits[0, -1]
        row = Row(context, (int(logits.argmax()),), 1)
        samples.append(Sample(index, "text", 0, (row,), f"general {index}"))
    return samples


def heldout_general_losses(
    own_samples: list[Sample], general_samples: list[Sample]
) -> dict[int, Losses]:
    """By plan size, of models really cut and patched at every weight."""
    model = tiny.model()
    method = protocol.load_method("ghost")
    options = Repair.from_options({"method": "ghost", "ridge": RIDGE})
    own_source = Source(token_sequences(own_samples))
    general_source = Source(token_sequences(general_samples))
    _, is_heldout = draw_held_out([own_source, general_source], 0)
    heldout_samples = [
        sample for sample, flag in zip(general_samples, is_heldout, strict=True) if flag
    ]

    def mean_loss(runs: list[Boundary], patches: dict[Boundary, Fitted] | None) -> float:
        plan = plan_of([str(start) for start, _ in runs])
        variant = materialise(model, plan, patches)
        return -float(naive_loglikelihoods(variant, heldout_samples).mean())

    losses: dict[int, Losses] = {}
    for size, runs in RUNS_BY_SIZE.items():
        losses[size] = {None: mean_loss(runs, None)}
    for weight in weighing.GRID:
        sources = [own_source]
        if weight:
            sources.append(Source(general_source.sequences, weight))
        fits: dict[Boundary, Fitted] = {}
        for run, statistics in method.collect(model, sources, RUNS_BY_SIZE[2], options, 0):
            fits[run] = Fitted("ghost", method.fit(statistics, options).validated)
        for size, runs in RUNS_BY_SIZE.items():
            losses[size][weight] = mean_loss(runs, {run: fits[run] for run in runs})
    return losses


@pytest.fixture
def general_file(results: Path) -> str:
    """General text, next to an own calibration of five samples.

    These are about as many tokens as channels, which a patch without a ridge fits whatever it does
    to others.
    """
    own_samples = read_calibration(paths.calibration("tiny", "words", results)).samples[:5]
    write_samples(results, "words", list(own_samples))
    return write_samples(results, "general", easy_samples())


@pytest.fixture
def general_losses(results: Path, general_file: str) -> dict[int, Losses]:
    own_samples = read_calibration(paths.calibration("tiny", "words", results)).samples
    return heldout_general_losses(list(own_samples), easy_samples())


@pytest.fixture
def tolerance(general_losses: dict[int, Losses]) -> float:
    """One that a single run reaches with weight 0."""
    return general_losses[1][0.0] - general_losses[1][None] + 1e-4


@pytest.fixture
def open_rows(results: Path, general_file: str, tolerance: float) -> list[dict[str, Any]]:
    """The rows of a repair whose weight of general text is open."""
    return fit_repair(
        results,
        "auto",
        {"general": general_file},
        method="ghost",
        ridge=RIDGE,
        data=OPEN_WEIGHTS,
        tolerance=tolerance,
    )


def test_the_smallest_weight_that_keeps_general_text_is_taken_for_each_plan(
    open_rows: list[dict[str, Any]], general_losses: dict[int, Losses], tolerance: float
) -> None:
    sizes_and_runs = [(row["removed"], row["boundary"]) for row in open_rows]
    assert sizes_and_runs == [(1, "2-3"), (2, "2-3"), (2, "4-5")]
    for row in open_rows:
        losses = general_losses[row["removed"]]
        largest_loss = losses[None] + tolerance
        weights_within = [weight for weight in weighing.GRID if losses[weight] <= largest_loss]
        weight = row["auto_weight"]
        assert weight == weights_within[0]
        assert row["general_kept"]
        assert row["general_loss"] == pytest.approx(losses[weight], abs=1e-4)
        assert row["general_loss_before"] == pytest.approx(losses[None], abs=1e-4)
        assert row["n_general"] == 8
        assert row["n_samples"] == (45 if weight else 5)
    assert open_rows[0]["auto_weight"] == 0
    assert open_rows[1]["auto_weight"] > 0, "two runs need more general text than one"


@pytest.mark.parametrize(("size", "row_index"), [(1, 0), (2, 2)])
def test_an_open_weight_gives_the_patch_of_that_weight(
    size: int,
    row_index: int,
    results: Path,
    general_file: str,
    open_rows: list[dict[str, Any]],
) -> None:
    """Errors included."""
    open_row = open_rows[row_index]
    weight = open_row["auto_weight"]
    data = {"own": 1, "general": weight} if weight else {"own": 1}
    files = {"general": general_file} if weight else {}

    fixed_rows = fit_repair(results, "fixed", files, method="ghost", ridge=RIDGE, data=data)

    (fixed_row,) = [
        row
        for row in fixed_rows
        if row["removed"] == size and row["boundary"] == open_row["boundary"]
    ]
    for column in ("fit_error", "heldout_error", "mae_after", "n_tokens"):
        assert fixed_row[column] == pytest.approx(open_row[column], rel=1e-4)
    last_run = RUNS_BY_SIZE[size][-1]

    def read_operator(repair: str) -> torch.Tensor:
        variant = Variant("tiny", "words", "cosine", size, repair)
        patches = read_parts(variant, results).patches
        assert patches is not None
        return patches[last_run].tensors["operator"]

    torch.testing.assert_close(read_operator("auto"), read_operator("fixed"), atol=1e-5, rtol=1e-4)


def test_where_no_weight_keeps_general_text_the_one_that_loses_least_is_taken() -> None:
    """Weight .3 loses 2 instead of 3; the model without a patch loses 1.5 in the first plan."""
    losses = {weight: 2.0 if weight == 0.3 else 3.0 for weight in weighing.GRID}
    first_plan = {None: 1.5, **losses}
    second_plan = {None: 2.985, **losses}

    chosen = weighing.choose_weights({1: first_plan, 2: second_plan}, 0.02, 9)

    assert chosen[1]["auto_weight"] == 0.3
    assert not chosen[1]["general_kept"]
    assert chosen[2]["auto_weight"] == 0.0
    assert chosen[2]["general_kept"]

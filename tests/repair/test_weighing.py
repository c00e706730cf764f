"""The weight of general text that a repair leaves open: the smallest that keeps it, for each plan."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina import paths
from lamina.data import calibrations
from lamina.data.calibrations import Row, Sample
from lamina.engine.sources import Source, draw_held_out
from lamina.evaluation import assembly
from lamina.models.materialise import materialise
from lamina.options import repairs
from lamina.repair import protocol, weighing
from lamina.repair.protocol import Fitted
from lamina.variant import Variant
from tests.engine.test_sweep import naive
from tests.given import tiny
from tests.repair.test_repairs import fitted, plan_of
from tests.repair.test_repairs import results as results  # a fixture

PLANS = {1: [(2, 3)], 2: [(2, 3), (4, 5)]}


def general(results: Path, count: int = 40) -> list[Sample]:
    """Text of which a cut model is sure, where the workflow keeps calibrations."""
    draw, model, samples = random.Random(5), materialise(tiny.model(), plan_of(["2", "4"])), []
    for number in range(count):
        context = tuple(draw.randrange(4, 20) for _ in range(draw.randint(5, 15)))
        with torch.no_grad():
            answer = int(model(torch.tensor([context]), use_cache=False).logits[0, -1].argmax())
        samples.append(
            Sample(number, "text", 0, (Row(context, (answer,), 1),), f"general {number}")
        )
    file = paths.calibration("tiny", "general", results)
    calibrations.write_calibration(file, calibrations.build_calibration(samples, tiny.VOCABULARY))
    return samples


@pytest.mark.parametrize("settings", [{"method": "ghost", "bias": True}, {"method": "linearpatch"}])
def test_statistics_of_two_calibrations_add_up_at_any_weight(settings: dict[str, Any]) -> None:
    one, other = (tiny.tokens(rows, 9, seed=rows).tolist() for rows in (20, 12))
    model, options = tiny.model(), repairs.Repair.from_options(settings)
    method = protocol.load_method(options.method)

    def collected(*sources: Source) -> Any:
        ((_, found),) = method.collect(model, sources, [(1, 3)], options, 0)
        return found

    for weight in (0.0, 0.1, 3.0):
        together = [Source(one), Source(other, weight)] if weight else [Source(one)]
        expected = method.fit(collected(*together), options)
        found = method.fit(
            weighing.mix_statistics(collected(Source(one)), collected(Source(other)), weight),
            options,
        )
        assert found.facts == pytest.approx(expected.facts, rel=1e-5)
        for name, tensor in expected.tensors.items():
            torch.testing.assert_close(found.tensors[name], tensor, atol=1e-5, rtol=1e-4)


def test_the_smallest_weight_that_keeps_general_text_is_taken_for_each_plan(results: Path) -> None:
    """Against models really cut and patched, on the samples that no patch saw."""
    samples, model = general(results), tiny.model()
    # About as many tokens as channels, which a patch without ridge fits by doing anything to others.
    few = calibrations.read_calibration(paths.calibration("tiny", "words", results)).samples[:5]
    calibrations.write_calibration(
        paths.calibration("tiny", "words", results),
        calibrations.build_calibration(few, tiny.VOCABULARY),
    )
    told = [
        calibrations.read_calibration(paths.calibration("tiny", name, results)).sequences()
        for name in ("words", "general")
    ]
    (_, flags) = draw_held_out([Source(one) for one in told], 0)
    held = [sample for sample, out in zip(samples, flags, strict=True) if out]
    options, method = (
        repairs.Repair.from_options({"method": "ghost", "ridge": 1e-7}),
        protocol.load_method("ghost"),
    )
    losses: dict[int, dict[float | None, float]] = {1: {}, 2: {}}
    for weight in (None, *weighing.GRID):
        sources = [Source(told[0]), *([Source(told[1], weight)] if weight else [])]
        fits = dict(method.collect(model, sources, PLANS[2], options, 0))
        patches = {
            each: Fitted("ghost", method.fit(sums, options).validated)
            for each, sums in fits.items()
        }
        for removed, runs in PLANS.items():
            plan = plan_of([str(start) for start, _ in runs])
            variant = materialise(
                model, plan, None if weight is None else {run: patches[run] for run in runs}
            )
            losses[removed][weight] = -float(naive(variant, held, []).mean())

    # A tolerance that one run reaches with weight 0, and two runs with a larger one alone.
    tolerance = losses[1][0.0] - losses[1][None] + 1e-4
    file, open_ = paths.calibration("tiny", "general", results), {"own": 1, "general": "auto"}
    settings = {"method": "ghost", "ridge": 1e-7}
    rows = fitted(results, "auto", [f"general={file}"], **settings, data=open_, tolerance=tolerance)
    assert [(row["removed"], row["boundary"]) for row in rows] == [
        (1, "2-3"),
        (2, "2-3"),
        (2, "4-5"),
    ]
    for row in rows:
        removed, weight = row["removed"], row["auto_weight"]
        within = [
            w for w in weighing.GRID if losses[removed][w] <= losses[removed][None] + tolerance
        ]
        assert weight == within[0] and row["general_kept"]
        assert row["general_loss"] == pytest.approx(losses[removed][weight], abs=1e-4)
        assert row["general_loss_before"] == pytest.approx(losses[removed][None], abs=1e-4)
        assert row["n_general"] == 8 and row["n_samples"] == (45 if weight else 5)
    assert rows[1]["auto_weight"] > 0 and not rows[0]["auto_weight"]

    # What is kept is what that weight gives, errors included.
    for size, row in ((1, rows[0]), (2, rows[2])):
        weight = row["auto_weight"]
        data = {"own": 1, "general": weight} if weight else {"own": 1}
        alone = fitted(
            results, "fixed", [f"general={file}"] if weight else [], **settings, data=data
        )
        (same,) = (r for r in alone if (r["removed"], r["boundary"]) == (size, row["boundary"]))
        for name in ("fit_error", "heldout_error", "mae_after", "n_tokens"):
            assert same[name] == pytest.approx(row[name], rel=1e-4)
        both = (
            assembly.read_parts(Variant("tiny", "words", "cosine", size, of), results).patches
            for of in ("auto", "fixed")
        )
        one, other = (kept[PLANS[size][-1]].tensors["operator"] for kept in both)
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_where_no_weight_keeps_general_text_the_one_that_loses_least_is_taken() -> None:
    losses = {weight: 3.0 - (weight == 0.3) for weight in weighing.GRID}
    chosen = weighing.choose_weights(
        {1: {None: 1.5, **losses}, 2: {None: 2.985, **losses}}, 0.02, 9
    )
    assert [(each["auto_weight"], each["general_kept"]) for each in chosen.values()] == [
        (0.3, False),
        (0.0, True),
    ]

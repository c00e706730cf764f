"""Removals scored on several calibrations at once: how scores add up, what is read for it, and whose folds count."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.options import repairs
from lamina.selection import choosing, looped
from lamina.selection.looped import Looped
from lamina.selection.options import Scored
from lamina.selection.plans import ScoredUnit, StepEvidence
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages.prune import PruneStep
from lamina_workflow.stages.sweep import SweepUnits
from tests.engine.test_sweep import random_samples
from tests.given import tiny
from tests.given.configurations import RawConfig, minimal_config, write_model_and_data
from tests.given.scripts import make_wildcards

Scores = dict[str, float | None]


def step(scores: Scores, **more: Any) -> StepEvidence:
    return StepEvidence([ScoredUnit(unit, score) for unit, score in scores.items()], **more)


@pytest.mark.parametrize("combine", ["mean", "worst"])
def test_the_least_relevant_unit_is_that_of_the_mean_or_of_the_worst_score(combine: str) -> None:
    draw = random.Random(3)
    for _ in range(50):
        parts: list[Scores] = [
            {str(layer): draw.choice([-0.1, 0.0, 0.2, 0.7]) for layer in range(5)} for _ in range(3)
        ]
        weights = [1.0, draw.choice([0.5, 1.0, 2.0]), 0.25]
        found = choosing.combine_steps(
            [step(part, current_accuracy=0.8) for part in parts], weights, combine
        )
        best, order = {}, []
        for unit in parts[0]:
            terms = [weight * part[unit] for weight, part in zip(weights, parts, strict=True)]  # type: ignore[operator]
            best[unit] = max(terms) if combine == "worst" else sum(terms) / sum(weights)
        left = set(best)
        while left:
            least = min(best[unit] for unit in left)
            order.append(max((unit for unit in left if best[unit] < least + 1e-11), key=int))
            left.remove(order[-1])
        assert [unit for unit, _ in found.ranked] == order
        assert dict(found.ranked) == pytest.approx(best)
        assert found.current_accuracy == 0.8


def test_what_tells_nothing_has_no_say_and_what_gives_no_numbers_goes_last() -> None:
    own, silent = {"0": 0.3, "1": 0.1, "2": 0.2}, dict.fromkeys("012")
    found = choosing.combine_steps([step(own), step(silent)], [1, 5], "mean")
    assert found.ranked == [("1", 0.1), ("2", 0.2), ("0", 0.3)]
    # The own calibration at chance: its ranking by other means stands.
    alone = step({"2": None, "0": None, "1": None})
    assert choosing.combine_steps([alone, step(own)], [1, 5], "mean") is alone
    broken = choosing.combine_steps(
        [step(own), step({"0": 0.5, "1": None, "2": 0.5})], [1, 1], "worst"
    )
    assert broken.ranked == [("2", 0.5), ("0", 0.5), ("1", None)]
    # A unit that the other one did not score.
    missing = choosing.combine_steps([step(own), step({"0": 0.5, "2": 0.5})], [1, 1], "worst")
    assert missing.ranked == [("2", 0.5), ("0", 0.5), ("1", None)]


@pytest.mark.parametrize("fitted_on", [0.0, 0.5])
def test_what_is_scored_beside_is_judged_by_patches_that_did_not_see_it(fitted_on: float) -> None:
    """Changing one fold of the general samples, in the fit only, leaves the scores of that fold; folds of the own
    calibration and the patches are those of its own sweep.
    """
    model, samples = tiny.model(), random_samples(7, count=16)
    own = [sample.sequence() for sample in random_samples(8, count=12)]
    wanted = {unit: Candidate(frozenset({"1", unit})) for unit in ("2", "4")}
    options, told = (
        repairs.Repair.from_options({"method": "ghost", "ridge": 0.01}),
        [sample.sequence() for sample in samples],
    )
    _, fold = looped.draw_folds([own, told], 0)
    poison = [
        one if at else tuple(4 + token % 7 for token in one[::-1])
        for at, one in zip(fold, told, strict=True)
    ]
    found = []
    for general in (told, poison):
        sources = [Source(own), Source(general, fitted_on)]
        fitted = looped.fit_loop_patches(model, sources, wanted.values(), options, 0, scored=1)
        assert list(fitted.fold_of_sample) == fold
        with sweep.open_session(model, samples, outputs=False) as session:
            Looped(session, fitted).measure(range(len(samples)), wanted)
        found.append(session.scores.loglikelihood)
        alone = looped.fit_loop_patches(
            model, sources if fitted_on else sources[:1], wanted.values(), options, 0
        )
        for mine, theirs in zip(fitted.patches, alone.patches, strict=True):
            assert all(
                (mine[boundary].operator == theirs[boundary].operator).all() for boundary in mine
            )
    changed = (found[0] != found[1]).any(axis=0)
    rows = np.repeat(fold, [len(sample.rows) for sample in samples])
    assert not changed[rows == 0].any()
    assert changed[rows == 1].all() == bool(fitted_on)


@pytest.fixture
def raw() -> RawConfig:
    raw = minimal_config()
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": 0.1}}
    raw["selectors"] = {
        "bare": {"metric": "accuracy"},
        "wide": {"metric": "accuracy", "also": {"corpus": 0.5}},
        "looped": {
            "metric": "accuracy",
            "also": {"corpus": 0.5},
            "combine": "worst",
            "repair": "general",
            "seed": 4,
        },
        "once": {
            "metric": "perplexity",
            "strategy": "one_shot",
            "also": {"corpus": 1},
            "repair": "ghost",
        },
    }
    raw["studies"]["prune"] |= {"selectors": ["wide"], "removed": [2], "repairs": ["none"]}
    return raw


@pytest.fixture
def config(raw: RawConfig, tmp_path: Path) -> Configuration:
    return load_configuration(raw, write_model_and_data(tmp_path))


def at(selector: str, removed: int, calibration: str = "recall", **more: Any) -> Any:
    return make_wildcards(
        model="small", calibration=calibration, selector=selector, removed=removed, **more
    )


def test_a_step_is_scored_on_the_others_with_their_weights(config: Configuration) -> None:
    wide = plan(config, "wide", 3)
    assert wide.options()["beside"] == {"corpus": {"weight": 0.5, "score": "acc_norm"}}
    assert wide.modules == (
        "lamina.selection.strategies.iterative",
        "lamina.relevance.metrics.answers",
    )
    # For plans made on the corpus itself nothing is beside, and others know of none.
    assert plan(config, "wide", 3, "corpus").beside == plan(config, "bare", 3).beside == {}
    assert "beside" not in plan(config, "bare", 3).options()
    # A sweep stands in a folder of its calibration, whatever the selector that it follows.
    for way in ("for/recall/wide", "base/removal/layer"):
        swept = f"results/sweeps/small/corpus/{way}/removed=0.parquet"
        files = {
            "sweep": "s",
            "calibration": "c",
            "beside_samples": {"corpus": "b"},
            "beside_sweeps": [swept],
        }
        scored = wide.model_copy(update=files).scored
        assert scored == {
            "recall": Scored("c", "s", "acc_norm"),
            "corpus": Scored("b", swept, "acc_norm", 0.5),
        }


def plan(
    config: Configuration, selector: str, removed: int, calibration: str = "recall"
) -> PruneStep:
    return PruneStep.of(config, at(selector, removed, calibration))


def test_a_sweep_beside_has_the_repair_of_the_plans_it_follows(config: Configuration) -> None:
    beside = SweepUnits.of(config, at("for/recall/looped", 2, "corpus", block="0"))
    own = SweepUnits.of(config, at("looped", 2, block="0"))
    assert beside.loop == own.loop is not None and own.loop.weights == [
        ("recall", 1.0),
        ("corpus", 0.1),
    ]
    assert beside.keys == {
        "model": "small",
        "calibration": "corpus",
        "selector": "looped",
        "removed": 2,
    }
    assert beside.modules == own.modules
    bare = SweepUnits.of(config, at("for/recall/wide", 2, "corpus", block="0"))
    assert bare.loop is None

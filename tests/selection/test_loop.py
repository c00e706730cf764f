"""Selection with the repair in the loop: candidates are scored repaired, by patches that never saw the sample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import sweep
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.candidates import plan_sweep as listed
from lamina.engine.scores import Scores
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.models.units import all_units
from lamina.options import repairs
from lamina.repair import protocol
from lamina.repair.methods import ghost
from lamina.repair.protocol import Fitted
from lamina.selection import looped
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.looped import Looped, Repairs
from tests.engine.test_sweep import naive, random_samples
from tests.given import tiny

DEPTH, RIDGE = 5, 0.01
KINDS = ("choices", "generated", "text")


def options(**values: Any) -> Any:
    return repairs.Repair.from_options({"method": "ghost", "ridge": RIDGE, **values})


def candidates(
    removed: Sequence[str], depth: int = DEPTH, kind: str = "layer"
) -> dict[str, Candidate]:
    """The current model and each further removal, by the names of a sweep."""
    return listed(Candidate(frozenset(removed)), all_units(depth, kind, removed))[0]


def repairs_for(
    model: PreTrainedModel, samples: list[Sample], removed: Sequence[str], seed: int = 0
) -> Repairs:
    wanted = candidates(removed, len(layers_of(model))).values()
    return looped.fit_loop_patches(
        model, [Source([s.sequence() for s in samples])], wanted, options(), seed
    )


def swept(
    model: PreTrainedModel,
    samples: list[Sample],
    removed: Sequence[str],
    seed: int = 0,
    outputs: bool = True,
) -> Scores:
    """A full sweep with the repair in the loop."""
    fitted, wanted = (
        repairs_for(model, samples, removed, seed),
        candidates(removed, len(layers_of(model))),
    )
    with sweep.open_session(model, samples, 400, outputs) as session:
        _, observed = listed(wanted[CURRENT], list(wanted)[1:])
        Looped(session, fitted).measure(range(len(samples)), wanted, observed)
    return session.scores


def dense(
    model: PreTrainedModel, samples: list[Sample], removed: frozenset[str]
) -> dict[tuple[int, int], Patch]:
    """Patches of every run, by ridge regression on all tokens of the samples, stacked as one matrix."""
    streams = [
        tiny.stream(model, torch.tensor([sample.sequence()]), layers_of(model))
        for sample in samples
    ]
    gone, found = sorted(map(int, removed)), {}
    starts = [layer for layer in gone if layer - 1 not in gone]
    for start in starts:
        end = next(layer for layer in range(start, 100) if layer not in gone)
        x, y = (
            np.concatenate([h[at][0].detach().double().numpy() for h in streams])
            for at in (start, end)
        )
        gram = x.T @ x
        ridge = RIDGE * np.trace(gram) / len(gram)
        operator = np.linalg.solve(gram + ridge * np.eye(len(gram)), x.T @ (y - x))
        found[start, end] = Patch(torch.tensor(operator).float())
    return found


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("removed", [(), ("1", "2")])
def test_scores_are_those_of_variants_repaired_by_the_other_fold(
    family: str, removed: tuple[str, ...]
) -> None:
    """Against models really cut and patched with operators of a dense solve, one row at a time."""
    model, samples = tiny.model(family), random_samples(1, count=16, kinds=KINDS)
    scores = swept(model, samples, removed)
    (fold,) = looped.draw_folds([[sample.sequence() for sample in samples]], 0)
    for unit, candidate in candidates(removed).items():
        for scored in (0, 1):
            others = [sample for sample, at in zip(samples, fold, strict=True) if at != scored]
            mine = [sample for sample, at in zip(samples, fold, strict=True) if at == scored]
            variant = model
            if candidate.removed:
                plan = {"units": sorted(candidate.removed)}
                variant = materialise(model, plan, dense(model, others, candidate.removed))
            expected = naive(variant, mine, [])
            number = scores.index[unit]
            rows = np.concatenate(
                [np.arange(scores.offsets[s.index], scores.offsets[s.index + 1]) for s in mine]
            )
            assert np.abs(scores.loglikelihood[number, rows] - expected).max() < 1e-4, (
                unit,
                scored,
            )


METHODS: list[dict[str, Any]] = [
    {"method": "ghost", "ridge": "validated", "bias": True, "rank": 5},
    {"method": "linearpatch"},
]


@pytest.mark.parametrize("unit", ["3", "3.mlp"])
@pytest.mark.parametrize("settings", METHODS, ids=[str(each["method"]) for each in METHODS])
def test_every_linear_repair_can_be_in_the_loop(settings: dict[str, Any], unit: str) -> None:
    """Scores are those of variants repaired by the method itself, fitted on the other fold alone."""
    model, samples = tiny.model(), random_samples(13, count=14)
    told, chosen = [s.sequence() for s in samples], repairs.Repair.from_options(settings)
    wanted = candidates(["1"], kind="layer" if unit == "3" else "both")
    fitted, method = (
        looped.fit_loop_patches(model, [Source(told)], wanted.values(), chosen, 0),
        protocol.load_method(chosen.method),
    )
    with sweep.open_session(model, samples, outputs=False) as session:
        Looped(session, fitted).measure(range(len(samples)), {unit: wanted[unit]})
    scored = [sample for sample, at in zip(samples, fitted.fold_of_sample, strict=True) if at == 0]
    others = [sequence for sequence, at in zip(told, fitted.fold_of_sample, strict=True) if at == 1]
    fits = {
        boundary: Fitted(chosen.method, method.fit(statistics, chosen).tensors)
        for boundary, statistics in method.collect(
            model, [Source(others)], find_runs(["1", unit], DEPTH), chosen, 0
        )
    }
    expected = naive(materialise(model, {"units": ["1", unit]}, fits), scored, [])
    found = [
        session.scores.loglikelihood[0, session.scores.offsets[s.index] :][: len(s.rows)]
        for s in scored
    ]
    assert np.abs(np.concatenate(found) - expected).max() < 1e-4


@pytest.mark.parametrize("poisoned", [0, 1])
def test_no_sample_is_scored_under_a_patch_that_was_fitted_on_it(poisoned: int) -> None:
    """Whatever the repair is told of one fold, that fold's own scores stay, and the other's change."""
    model, samples, wanted = tiny.model(), random_samples(3, count=20), candidates(["1"])
    told = [sample.sequence() for sample in samples]
    (fold,) = looped.draw_folds([told], 0)
    other = [tuple(4 + token % 7 for token in one[::-1]) + (5,) * at for at, one in enumerate(told)]
    poison = [
        one if at != poisoned else two for at, one, two in zip(fold, told, other, strict=True)
    ]
    assert looped.draw_folds([poison], 0) == [fold]
    found = []
    for sequences in (told, poison):
        fitted = looped.fit_loop_patches(
            model, [Source(sequences)], wanted.values(), options(ridge="validated"), 0
        )
        with sweep.open_session(model, samples, 400, False) as session:
            Looped(session, fitted).measure(range(len(samples)), wanted)
        found.append(session.scores.loglikelihood)
    changed = (found[0] != found[1]).any(axis=0)
    rows = np.repeat(fold, [len(sample.rows) for sample in samples])
    assert not changed[rows == poisoned].any()
    assert changed[rows != poisoned].all()


def test_equal_samples_are_in_one_fold_and_folds_are_halves() -> None:
    told = [sample.sequence() for sample in random_samples(4, count=30)]
    own, other = looped.draw_folds([[*told, *told[:7]], [*told[:4], (9, 9, 9)]], 3)
    assert own[30:] == own[:7] and other[:4] == own[:4]
    assert sum(own[:30]) == 15
    assert looped.draw_folds([told], 3) != looped.draw_folds([told], 4)
    assert looped.draw_folds([told], 3) == looped.draw_folds([told], 3)


@pytest.mark.parametrize("removed", [(), ("1", "4")])
def test_parts_of_the_samples_are_scored_under_the_patches_of_their_folds(
    removed: tuple[str, ...],
) -> None:
    """Asked for in any order, they have the losses that one sweep over all samples gives."""
    model = tiny.model(depth=6)
    samples = random_samples(6, count=60, kinds=KINDS)
    wanted = candidates(removed, 6)
    repairs = repairs_for(model, samples, removed)
    full = swept(model, samples, removed, outputs=False)
    with sweep.open_session(model, samples, outputs=False) as session:
        evaluator = Evaluator(Looped(session, repairs), loss_of("perplexity", "acc"))
        order = np.random.default_rng(0).permutation(60)
        for part in np.split(order, 4):
            evaluator.losses(list(wanted.values()), part)
        losses = evaluator.losses(list(wanted.values()), range(60))
    nll_by_unit = {unit: [full.sample(unit, n)["nll"] for n in range(60)] for unit in wanted}
    assert losses == pytest.approx(np.array(list(nll_by_unit.values())), abs=1e-3)


def test_one_base_pass_serves_all_candidates() -> None:
    model, samples, other = tiny.model(), random_samples(8, count=20), random_samples(12, count=8)
    seen: list[int] = []
    layers_of(model)[0].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (args[0] if args else kwargs["hidden_states"]).shape[0]
        ),
        with_kwargs=True,
    )
    fitted = repairs_for(model, samples, ["2"])
    assert sum(seen) == len(samples)
    # Candidates that lack the same run hold the same object, so that their streams stay one.
    one, two = (fitted.repair_candidate(candidates(["2"])[unit], 0) for unit in ("0", "4"))
    assert one.patches[2, 3] is two.patches[2, 3]
    # What else the repair is fitted on is halved as well, so that the mixture stays what its weights say.
    weighted = ((samples, 1.0), (other, 0.1))
    sources = [Source([sample.sequence() for sample in part], weight) for part, weight in weighted]
    seen.clear()
    more = looped.fit_loop_patches(model, sources, candidates(["2"]).values(), options(), 0)
    assert sum(seen) == len(samples) + len(other)
    assert not torch.equal(more.patches[0][2, 3].operator, fitted.patches[0][2, 3].operator)


def test_too_few_samples_are_refused() -> None:
    samples = random_samples(10, count=3)
    with pytest.raises(
        LaminaError, match=r"`repair` of a selector.*at least 4 different documents.* has 3"
    ):
        repairs_for(tiny.model(), samples, [])


def test_a_repair_that_is_no_map_of_the_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ghost, "as_patch", lambda tensors: None)
    with pytest.raises(
        LaminaError, match=r"'ghost' is no linear map of the stream.*Give the selector"
    ):
        repairs_for(tiny.model(), random_samples(11), [])

"""Candidates: any set of removed units with patches, on a tree of streams, equal to the materialised variant."""

import gc
import weakref

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import sweep
from lamina.engine.candidates import Candidate, grow_tree
from lamina.engine.session import PassPlan, Session
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.models.units import all_units
from tests.engine.test_sweep import NEAR_TIE, naive, random_samples
from tests.given import tiny

DEPTH = 5
# Nested sets, several runs, halves beside layers, a layer without both halves, the first and the last layer.
SETS = [
    ["1"],
    ["1", "2"],
    ["1", "3"],
    ["0", "1", "4"],
    ["3", "4"],
    ["2", "0.attention", "4.mlp"],
    ["0", "2.mlp"],
]
HALVES = ["3.attention", "3.mlp"]


def patched(units: list[str], seed: int, bias: bool, channels: int = 32) -> Candidate:
    """A candidate with a random patch at each of its runs, of which several candidates share none."""
    draw = torch.Generator().manual_seed(seed)
    patches = {
        boundary: Patch(
            0.3 * torch.randn(channels, channels, generator=draw) / channels**0.5,
            torch.randn(channels, generator=draw) if bias else None,
        )
        for boundary in find_runs(units, DEPTH)
    }
    return Candidate(frozenset(units), patches)


def measured(
    model: PreTrainedModel, samples: list[Sample], wanted: list[Candidate], tokens: int = 2000
) -> np.ndarray:
    """Log-likelihoods of all rows by each candidate, in one session."""
    with sweep.open_session(model, samples, tokens, outputs=False) as session:
        session.measure(range(len(samples)), {candidate: candidate for candidate in wanted})
    return session.scores.loglikelihood[[session.scores.index[candidate] for candidate in wanted]]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_any_set_with_any_patches_equals_the_materialised_variant(family: str) -> None:
    model, samples = tiny.model(family), random_samples(1, count=5)
    wanted = [
        patched(units, seed, bias=seed % 2 == 0)
        for seed, units in enumerate([*SETS, ["1"], ["1", *HALVES]])
    ]
    wanted += [Candidate(frozenset(units)) for units in (*SETS, HALVES)]
    found = measured(model, samples, wanted)
    for candidate, mine in zip(wanted, found, strict=True):
        variant = materialise(
            model, {"units": sorted(candidate.removed)}, candidate.patches or None
        )
        assert np.abs(mine - naive(variant, samples, [])).max() < NEAR_TIE, candidate.removed
    assert np.abs(found[0] - found[len(SETS)]).max() > NEAR_TIE, (
        "two patches for one set are two candidates"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_repairs_as_the_variant_does(dtype: torch.dtype) -> None:
    """Rows of different lengths batch differently, so one sample at a time: then the two agree up to rounding."""
    model, samples = tiny.model().to(dtype), random_samples(2, count=3, kinds=("text",))
    candidate = patched(["1", "3", "4"], 0, bias=True)
    variant = materialise(model, {"units": sorted(candidate.removed)}, candidate.patches)
    found = measured(model, samples, [candidate], tokens=1)[0]
    assert found == pytest.approx(
        naive(variant, samples, []), abs=0.15 if dtype == torch.bfloat16 else 0.02
    )


def layers_run(wanted: list[Candidate], depth: int = 12, **observed: list) -> int:
    return grow_tree(wanted, observed.get("observations", []), depth, empty_is_identity=True).layers


def test_streams_split_where_candidates_differ_and_not_before() -> None:
    base, other = Candidate(), Candidate(frozenset({"5"}))
    single = [base.without(str(layer)) for layer in range(12)]
    # Removing layer l costs the suffix behind it: 12 + (11 + 10 + … + 0).
    assert layers_run([base]) == 12 and layers_run([base, base]) == 12
    assert layers_run([base, *single]) == 12 + 66
    # Without the model itself the common stream ends where the last has forked off.
    assert layers_run(single) == 11 + 66
    assert layers_run([other]) == 11
    # A pruned model with the unpruned one beside it: one stream of 5 layers, then two.
    assert layers_run([base, other]) == 5 + 7 + 6
    # What two sets have in common runs once: layers 1 and 3 gone, then 7 or 9.
    pair = [Candidate(frozenset({"1", "3", last})) for last in ("7", "9")]
    assert layers_run(pair) == 5 + 1 + 2 + 1 + 4
    # Patches differ at the boundary behind the run, not before it.
    repaired = [Candidate(frozenset({"4"}), {(4, 5): Patch(torch.zeros(1, 1))}) for _ in range(2)]
    assert layers_run(repaired) == 4 + 7 + 7
    # Behind the last layer only the head is left to differ.
    assert (
        layers_run(
            [Candidate(frozenset({"11"}), {(11, 12): Patch(torch.zeros(1, 1))}) for _ in range(2)]
        )
        == 11
    )
    # A layer without both halves is no layer, except where a norm stands on the stream.
    halves = Candidate(frozenset({"2.attention", "2.mlp"}))
    assert (
        layers_run([halves]) == 11
        and grow_tree([halves], [], 12, empty_is_identity=False).layers == 12
    )


@pytest.mark.parametrize("tokens", [1, 60, 10_000])
def test_groups_under_a_small_budget_change_nothing(tokens: int) -> None:
    """Every group carries the unpruned model to be compared with, and the model that is observed."""
    model, samples, units = (
        tiny.model(),
        random_samples(5, count=5),
        all_units(DEPTH, "mlp", ["2.mlp"]),
    )
    whole = sweep.sweep_units(model, samples, units, ["2.mlp"])
    parts = sweep.sweep_units(model, samples, units, ["2.mlp"], token_budget=tokens)
    for name in ("output_kl", "output_norm"):
        np.testing.assert_allclose(
            parts.output[name] / parts.output_count, whole.output[name] / whole.output_count, 1e-3
        )
    np.testing.assert_allclose(parts.cosine, whole.cosine, rtol=1e-4)
    np.testing.assert_allclose(parts.loglikelihood, whole.loglikelihood, atol=1e-4)


def test_out_of_memory_halves_the_pass_with_the_failed_tensors_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, samples, units = tiny.model(), random_samples(6, count=7), all_units(DEPTH, "layer")
    whole = sweep.sweep_units(model, samples, units)
    failed: list[weakref.ref] = []
    forward = Session._forward

    def small_machine(self: Session, plan: PassPlan) -> None:
        gc.disable()  # what a cycle keeps would be freed on a GPU that is full only by chance
        assert not any(held() is not None for held in failed)
        if len(plan.lines) * len(plan.candidates) > 4:
            held = torch.zeros(1000)
            failed.append(weakref.ref(held))
            raise torch.cuda.OutOfMemoryError
        forward(self, plan)

    monkeypatch.setattr(Session, "_forward", small_machine)
    try:
        halved = sweep.sweep_units(model, samples, units)
    finally:
        gc.enable()
    assert len(failed) > 3
    np.testing.assert_allclose(halved.loglikelihood, whole.loglikelihood, atol=1e-5)
    np.testing.assert_allclose(halved.cosine, whole.cosine, rtol=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    model = tiny.model()
    before, head = list(layers_of(model)), model.get_output_embeddings()
    with pytest.raises(LaminaError):
        measured(model, random_samples(7, count=2), [Candidate(frozenset({"7"}))])
    assert all(now is then for now, then in zip(layers_of(model), before, strict=True))
    assert model.get_output_embeddings() is head

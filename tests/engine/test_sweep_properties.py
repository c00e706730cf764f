"""A sweep of any documents, units and removed sets, under any budget, equals cut models."""

import random

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep
from lamina.models.units import all_units
from tests.given import tiny
from tests.given.cut_models import naive_loglikelihoods

TOKENS = st.integers(4, tiny.VOCABULARY - 1)
WORDS = st.lists(TOKENS, min_size=1, max_size=5).map(tuple)


@st.composite
def draw_samples(draw: st.DrawFn) -> list[Sample]:
    """Documents whose rows share their context, the start of it, or nothing but its first token.

    The rows of winogrande are an example of the last.
    """
    samples: list[Sample] = []
    for index in range(draw(st.integers(1, 4))):
        shared_context = draw(st.lists(TOKENS, min_size=1, max_size=9).map(tuple))
        has_own_contexts = draw(st.booleans())
        rows: list[Row] = []
        for _ in range(draw(st.integers(1, 4))):
            context = shared_context
            if has_own_contexts:
                context = shared_context + draw(WORDS)
            rows.append(Row(context, draw(WORDS), draw(st.integers(1, 9))))
        kind = "choices"
        if len(rows) == 1:
            kind = draw(st.sampled_from(["generated", "text"]))
        gold = draw(st.integers(0, len(rows) - 1))
        samples.append(Sample(index, kind, gold, tuple(rows), str(index)))
    return samples


@settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    samples=draw_samples(),
    family=st.sampled_from(["llama", "mistral", "gemma2", "gemma3_text", "gpt_neox"]),
    kind=st.sampled_from(["layer", "attention", "mlp"]),
    removed_layers=st.sets(st.integers(0, 4), max_size=3),
    tokens=st.sampled_from([1, 40, 160, 2000]),
    generator=st.randoms(use_true_random=False),
)
def test_any_sweep_equals_cut_models(
    samples: list[Sample],
    family: str,
    kind: str,
    removed_layers: set[int],
    tokens: int,
    generator: random.Random,
) -> None:
    model = tiny.model(family)
    removed_units = [
        unit for unit in all_units(5, kind) if int(unit.split(".")[0]) in removed_layers
    ]
    remaining_units = all_units(5, kind, removed_units)
    units = sorted(generator.sample(remaining_units, generator.randint(1, len(remaining_units))))

    scores = sweep.sweep_units(model, samples, units, removed_units, token_budget=tokens)

    for unit in ("none", *units):
        cut_units = set(removed_units)
        if unit != "none":
            cut_units.add(unit)
        expected = naive_loglikelihoods(model, samples, cut_units)
        assert np.abs(scores.loglikelihood[scores.index[unit]] - expected).max() < 1e-4, unit

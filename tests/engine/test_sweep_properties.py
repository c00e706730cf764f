"""For any lengths, choices, budgets, units and removed sets, the engine gives what the cut model gives row by row."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep
from lamina.models.units import all_units
from tests.engine.test_sweep import naive
from tests.given import tiny

_TOKENS = st.integers(4, tiny.VOCABULARY - 1)
_WORDS = st.lists(_TOKENS, min_size=1, max_size=5).map(tuple)


@st.composite
def documents(draw: st.DrawFn) -> list[Sample]:
    """Documents whose rows may share a context, part of it, or nothing but the first token (as winogrande's do)."""
    samples = []
    for index in range(draw(st.integers(1, 4))):
        shared = draw(st.lists(_TOKENS, min_size=1, max_size=9).map(tuple))
        own = draw(st.booleans())
        contexts = [shared + (draw(_WORDS) if own else ()) for _ in range(draw(st.integers(1, 4)))]
        rows = tuple(Row(context, draw(_WORDS), draw(st.integers(1, 9))) for context in contexts)
        kind = "choices" if len(rows) > 1 else draw(st.sampled_from(["generated", "text"]))
        samples.append(Sample(index, kind, draw(st.integers(0, len(rows) - 1)), rows, str(index)))
    return samples


@settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    samples=documents(),
    family=st.sampled_from(["llama", "mistral", "gemma2", "gemma3_text", "gpt_neox"]),
    kind=st.sampled_from(["layer", "attention", "mlp"]),
    removed=st.sets(st.integers(0, 4), max_size=3),
    tokens=st.sampled_from([1, 40, 160, 2000]),
    pick=st.randoms(use_true_random=False),
)
def test_any_sweep_equals_cut_models(
    samples: list[Sample], family: str, kind: str, removed: set[int], tokens: int, pick: object
) -> None:
    model = tiny.model(family)
    gone = [str(layer) if kind == "layer" else f"{layer}.{kind}" for layer in sorted(removed)]
    units = all_units(5, kind, gone)
    units = sorted(pick.sample(units, pick.randint(1, len(units))))  # type: ignore[attr-defined]
    scores = sweep.sweep_units(model, samples, units, gone, token_budget=tokens)
    for unit in ["none", *units]:
        expected = naive(model, samples, gone if unit == "none" else [*gone, unit])
        assert np.abs(scores.loglikelihood[scores.index[unit]] - expected).max() < 1e-4, unit

"""The logits of a large vocabulary are read in parts, against the numbers of all logits at once."""

from typing import Any

import pytest

from lamina.engine import sweep
from lamina.engine.session import Session
from lamina.models.units import all_units
from tests.given import tiny
from tests.given.cut_models import random_samples
from tests.given.slow import slow_except


def sweep_rows(session: Session) -> list[dict[str, Any]]:
    session.sweep(all_units(5, "layer"))
    return session.scores.rows(session.scores.names)


@pytest.mark.parametrize("family", slow_except(["gemma2", "gpt2", "llama"], tiny.FAMILIES))
@pytest.mark.parametrize("n_positions", [0, 3])
def test_logits_in_parts_give_the_numbers_of_all_at_once(
    family: str, n_positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One position at a time, which has no room, or a few; no layer runs twice.

    Some families scale or cap their logits after the head.
    """
    model = tiny.model(family)
    samples = random_samples(3, kinds=("choices", "text"))
    n_streams = 7
    with sweep.open_session(model, samples, 400) as session:
        expected_rows = sweep_rows(session)
        expected_layer_tokens = session.layer_tokens
    room = n_positions * n_streams * tiny.VOCABULARY
    monkeypatch.setattr("lamina.engine.session.LOGIT_NUMBERS", room)
    sizes: list[int] = []
    head = model.get_output_embeddings()

    with sweep.open_session(model, samples, 400) as session:
        head.register_forward_hook(lambda module, inputs, logits: sizes.append(logits.numel()))
        rows = sweep_rows(session)

    assert session.layer_tokens == expected_layer_tokens
    assert len(sizes) > 10
    logits_of_one_position = (n_streams + 1) * tiny.VOCABULARY
    assert max(sizes) <= max(room, logits_of_one_position)
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(expected_row, abs=2e-5, nan_ok=True)

"""The logits of a large vocabulary are read in parts: the numbers are those of all at once, whatever follows the head."""

from typing import Any

import pytest

from lamina.engine import session as sessions
from lamina.engine import sweep
from lamina.engine.session import Session
from lamina.models.units import all_units
from tests.engine.test_sweep import random_samples
from tests.given import tiny
from tests.given.slow import slow_except


def swept(session: Session) -> list[dict[str, Any]]:
    session.sweep(all_units(5, "layer"))
    return session.scores.rows(session.scores.names)


@pytest.mark.parametrize("family", slow_except(["gemma2", "gpt2", "llama"], tiny.FAMILIES))
@pytest.mark.parametrize("numbers", [1, 20 * tiny.VOCABULARY])
def test_parts_give_the_numbers_of_the_whole(
    family: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place at a time, and a few. Some families scale or cap their logits behind the head."""
    model = tiny.model(family)
    samples = random_samples(3, kinds=("choices", "text"))
    with sweep.open_session(model, samples, 400) as session:
        whole = swept(session)
        work = session.layer_tokens
    monkeypatch.setattr(sessions, "LOGITS", numbers)
    sizes: list[int] = []
    headed = Session._apply_head

    def counted(self: Session, hidden: Any, most_places: int) -> Any:
        for part in headed(self, hidden, most_places):
            sizes.append(part.numel())
            yield part

    monkeypatch.setattr(Session, "_apply_head", counted)
    with sweep.open_session(model, samples, 400) as session:
        parts = swept(session)
        assert session.layer_tokens == work, "no layer runs twice"
        assert session._head_runs_alone, "the head gives the numbers of the whole model"
    assert len(sizes) > 10
    # One place has a number for each of the streams and each token of the vocabulary.
    assert max(sizes) <= max(numbers, 8 * tiny.VOCABULARY)
    for one, other in zip(whole, parts, strict=True):
        assert one == pytest.approx(other, abs=2e-5, nan_ok=True)

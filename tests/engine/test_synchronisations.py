"""A pass waits for its device a fixed number of times, whatever the lines, layers and candidates.

Counted are all calls that a host can answer only once a GPU has answered.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lamina.data.calibrations import Row, Sample
from lamina.engine import capture, forking, moments, sweep
from lamina.engine.sources import Source
from lamina.models.units import all_units
from tests.given import tiny
from tests.given.slow import slow_except

WAITING_CALLS = {
    "cpu",
    "tolist",
    "numpy",
    "item",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__array__",
    "nonzero",
}
"""Calls from Python."""
WAITING_OPERATIONS = {"aten::_local_scalar_dense", "aten::nonzero"}
"""Operations, also those within others."""


class RecordCalls(TorchFunctionMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in WAITING_CALLS:
            self.waits.append(name)
        return function(*args, **(kwargs or {}))


class RecordOperations(TorchDispatchMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function._schema.name
        if name in WAITING_OPERATIONS:
            self.waits.append(name)
        return function(*args, **(kwargs or {}))


@contextmanager
def record_waits() -> Iterator[list[str]]:
    """Lists what makes a GPU wait in the block."""
    waits: list[str] = []
    with RecordOperations(waits), RecordCalls(waits):
        yield waits


def draw_samples(count: int, kind: str) -> list[Sample]:
    """Texts, or questions of two choices that differ in their last token."""
    n_rows = 1 if kind == "text" else 2
    samples: list[Sample] = []
    for index, token_ids in enumerate(tiny.tokens(count, 14).tolist()):
        context = tuple(token_ids[:9])
        rows = [Row(context, (*token_ids[9:11], last), 3) for last in range(n_rows)]
        samples.append(Sample(index, kind, 0, tuple(rows), str(index)))
    return samples


def draw_texts(count: int) -> list[tuple[int, ...]]:
    return [tuple(token_ids) for token_ids in tiny.tokens(count).tolist()]


def count_sweep_waits(n_lines: int, depth: int, kind: str) -> int:
    model = tiny.model(depth=depth)
    samples = draw_samples(n_lines, kind)
    with sweep.open_session(model, samples, 1_000_000) as session, record_waits() as waits:
        session.sweep(all_units(depth, "layer"))
    return len(waits)


def count_capture_waits(n_lines: int, depth: int) -> int:
    """Without the check of a model before its first capture, and the channel magnitudes."""
    model = tiny.model(depth=depth)
    texts = draw_texts(n_lines)
    capture.capture_similarities(model, texts)
    with record_waits() as waits:
        capture.capture_similarities(model, texts)
    n_magnitudes = depth + 1
    return len(waits) - n_magnitudes


def count_moment_waits(n_lines: int, depth: int) -> int:
    model = tiny.model(depth=depth)
    sources = [Source(draw_texts(n_lines))]
    boundaries = [(layer, layer + 1) for layer in range(depth)]
    with record_waits() as waits:
        list(moments.collect_moments(model, sources, boundaries, 0))
    return len(waits)


@pytest.mark.parametrize(
    ("count_waits", "limit"),
    [
        (lambda n_lines, depth: count_sweep_waits(n_lines, depth, "choices"), 4),
        (lambda n_lines, depth: count_sweep_waits(n_lines, depth, "text"), 4),
        (count_capture_waits, 12),
        (count_moment_waits, 12),
    ],
    ids=["sweep of choices", "sweep of texts", "capture", "moments"],
)
def test_a_pass_waits_as_often_for_more_lines_and_layers(
    count_waits: Callable[[int, int], int], limit: int
) -> None:
    n_waits = count_waits(3, 3)

    assert 0 < n_waits <= limit
    assert count_waits(9, 3) == n_waits
    assert count_waits(3, 7) == n_waits


@pytest.mark.parametrize("kind", ["text", "choices"])
def test_attention_has_a_mask_only_where_a_context_is_shared(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, attention takes its fastest kernel, and grouped heads are not repeated."""
    model = tiny.model()
    attend = torch.nn.functional.scaled_dot_product_attention
    calls: set[tuple[bool, bool, int]] = set()

    def record_attention(query: Any, key: Any, *args: Any, **options: Any) -> torch.Tensor:
        has_mask = options.get("attn_mask") is not None
        calls.add((has_mask, options["is_causal"], key.shape[1]))
        return attend(query, key, *args, **options)

    with sweep.open_session(model, draw_samples(3, kind), 1_000_000) as session:
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record_attention)
        session.sweep(all_units(5, "layer"))

    if kind == "choices":
        assert calls == {(True, False, model.config.num_attention_heads)}
    else:
        assert calls == {(False, True, model.config.num_key_value_heads)}


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
def test_texts_without_a_mask_have_the_numbers_of_those_with_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(family)
    samples = draw_samples(5, "text")
    units = all_units(5, "layer")

    without_mask = sweep.sweep_units(model, samples, units)
    monkeypatch.setattr(forking, "causal_alone", lambda model: False)
    with_mask = sweep.sweep_units(model, samples, units)

    differences = np.abs(without_mask.loglikelihood - with_mask.loglikelihood)
    assert differences.max() < 1e-4
    assert np.nanmax(np.abs(without_mask.cosine - with_mask.cosine)) < 1e-5

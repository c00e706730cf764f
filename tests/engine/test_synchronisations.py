"""A pass asks its device for numbers once, however many lines, layers and candidates it has."""

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

# What a host can only answer once a GPU has answered: calls from Python, and operations anywhere.
_CALLS = {
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
_OPERATIONS = {"aten::_local_scalar_dense", "aten::nonzero"}


class _Calls(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in _CALLS:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function._schema.name in _OPERATIONS:
            self.found.append(function._schema.name)
        return function(*args, **(kwargs or {}))


@contextmanager
def looks() -> Iterator[list[str]]:
    """While open, what makes a GPU wait is written down."""
    found: list[str] = []
    with _Operations(found), _Calls(found):
        yield found


def questions(count: int, kind: str) -> list[Sample]:
    ids = tiny.tokens(count, 14).tolist()
    rows = [
        [Row(tuple(line[:9]), (*line[9:11], n), 3) for n in range(1 if kind == "text" else 2)]
        for line in ids
    ]
    return [Sample(number, kind, 0, tuple(each), str(number)) for number, each in enumerate(rows)]


def swept(lines: int, depth: int, kind: str) -> int:
    units = all_units(depth, "layer")
    model, samples = tiny.model(depth=depth), questions(lines, kind)
    with sweep.open_session(model, samples, 1_000_000) as session, looks() as found:
        session.sweep(units)
    return len(found)


def captured(lines: int, depth: int, _: str) -> int:
    model, texts = tiny.model(depth=depth), [tuple(line) for line in tiny.tokens(lines).tolist()]
    capture.capture_similarities(model, texts)  # the check, once a model, is not counted
    with looks() as found:
        capture.capture_similarities(model, texts)
    return len(found) - (depth + 1)  # channel magnitudes of the table, once at the end


def summed(lines: int, depth: int, _: str) -> int:
    model, texts = tiny.model(depth=depth), [tuple(line) for line in tiny.tokens(lines).tolist()]
    boundaries = [(layer, layer + 1) for layer in range(depth)]
    with looks() as found:
        list(moments.collect_moments(model, [Source(texts)], boundaries, 0))
    return len(found)


@pytest.mark.parametrize(
    ("measure", "kind", "most"),
    [(swept, "choices", 4), (swept, "text", 4), (captured, "", 12), (summed, "", 12)],
)
def test_numbers_are_asked_for_once_a_batch(
    measure: Callable[..., int], kind: str, most: int
) -> None:
    once = measure(3, 3, kind)
    assert 0 < once <= most
    assert measure(9, 3, kind) == measure(3, 7, kind) == once


@pytest.mark.parametrize(("kind", "masks"), [("text", 0), ("choices", 1)])
def test_attention_has_a_mask_where_a_context_is_shared(
    kind: str, masks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, attention takes its fastest kernel and grouped heads are not repeated."""
    model, given = tiny.model(), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def seen(*args: Any, **kwargs: Any) -> torch.Tensor:
        given.append((kwargs.get("attn_mask") is not None, args[1].shape[1], kwargs["is_causal"]))
        return attend(*args, **kwargs)

    with sweep.open_session(model, questions(3, kind), 1_000_000) as session:
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
        session.sweep(all_units(5, "layer"))
    heads = model.config.num_attention_heads if masks else model.config.num_key_value_heads
    assert set(given) == {(bool(masks), heads, not masks)}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_texts_without_a_mask_have_the_numbers_of_those_with_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, samples, units = tiny.model(family), questions(5, "text"), all_units(5, "layer")
    plain = sweep.sweep_units(model, samples, units)
    monkeypatch.setattr(forking, "causal_alone", lambda model: False)
    masked = sweep.sweep_units(model, samples, units)
    assert np.abs(plain.loglikelihood - masked.loglikelihood).max() < 1e-4
    assert np.nanmax(np.abs(plain.cosine - masked.cosine)) < 1e-5

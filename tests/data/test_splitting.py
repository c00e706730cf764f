"""A sample that judges is never a copy of one that was fitted on, whoever splits and however often a text is there."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lamina.data.calibrations import Sample
from lamina.data.splitting import index_documents, split_documents
from lamina.diagnosis import probe, variance
from lamina.diagnosis.probe import Probe
from lamina.diagnosis.variance import Variance
from lamina.engine import sources
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.healing import batches
from lamina.healing.batches import TrainingSource
from lamina.models.boundary import Patch
from lamina.repair import check
from lamina.selection import looped, trials
from tests.given import tiny
from tests.given.repairs import draw_texts

Texts = list[tuple[int, ...]]


def repeated(seed: int, count: int = 120, different: int = 24) -> tuple[Texts, Texts]:
    """Two calibrations of few texts, many times each: the second has half of the first one's, cut at another length."""
    draw = random.Random(seed)
    texts = [
        (number, *(draw.randrange(99) for _ in range(draw.randrange(6, 12))))
        for number in range(different)
    ]
    other = [
        (number, *(draw.randrange(99) for _ in range(8))) for number in range(100, 100 + different)
    ]
    own = texts + [draw.choice(texts) for _ in range(count)]
    added = (
        [text[:5] for text in texts[::2]] + other + [draw.choice(other)[:6] for _ in range(count)]
    )
    return own, added


def same(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """The definition, pair by pair."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def patches(own: Texts, added: Texts, seed: int) -> list[list[int]]:
    return [
        list(map(int, flags))
        for flags in sources.draw_held_out([Source(own), Source(added, 0.1)], seed)
    ]


def healing(own: Texts, added: Texts, seed: int) -> list[list[int]]:
    given: list[list[Sample]] = [tiny.samples(texts) for texts in (own, added)]
    held = batches.split_sources([TrainingSource(samples) for samples in given], seed)[1]
    return [
        [int(sample in out.samples) for sample in samples]
        for samples, out in zip(given, held, strict=True)
    ]


def loop(own: Texts, added: Texts, seed: int) -> list[list[int]]:
    return looped.draw_folds([own, added], seed)


def winners(own: Texts, added: Texts, seed: int) -> list[list[int]]:
    """What a search sees, and of another calibration what it may fit on."""
    _, back = trials.split_samples(own, 0.3, seed)
    kept = trials.exclude_documents(added, [own[number] for number in back])
    assert kept
    return [
        [int(number in back) for number in range(len(own))],
        [int(text not in kept) for text in added],
    ]


def probes(own: Texts, added: Texts, seed: int) -> list[list[int]]:
    labels = np.array([str(text[0] % 2) for text in own])
    return [probe.assign_folds(own, labels, Probe(file="x", folds=4, seed=seed)).tolist()]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "way", [patches, healing, loop, winners, probes], ids=lambda way: way.__name__
)
def test_no_copy_of_a_text_is_on_two_sides(
    way: Callable[[Texts, Texts, int], list[list[int]]], seed: int
) -> None:
    own, added = repeated(seed)
    found = way(own, added, seed)
    told = list(zip([*own, *added], [side for source in found for side in source], strict=False))
    assert len({side for _, side in told}) > 1
    for text, side in told:
        assert {at for other, at in told if same(text, other)} == {side}, text


def test_documents_are_what_the_definition_says() -> None:
    own, added = repeated(5)
    (mine, theirs), texts = index_documents([own, added]), [*own, *added]
    numbers = [*mine, *theirs]
    for text, number in zip(texts, numbers, strict=True):
        assert [same(text, other) for other in texts] == [number == at for at in numbers]
    assert sorted(set(numbers)) == list(range(48)) and mine[:24] == list(range(24))
    # A short text ties those that begin with it.
    assert index_documents([[(1, 2, 3), (1, 4)], [(1,)]]) == [[0, 0], [0]]


def test_parts_are_as_large_as_asked_in_documents_of_every_source() -> None:
    own, added = repeated(6)
    found = split_documents([own, added], lambda count: (count - 10, 6, 4), 3, 2, "a test")
    for texts, part in zip((own, added), found, strict=True):
        sizes = [
            len({text[0] for text, at in zip(texts, part, strict=True) if at == each})
            for each in range(3)
        ]
        count = len({text[0] for text in texts})
        assert sizes == pytest.approx([count - 10, 6, 4], abs=2) and sum(sizes) == count
    # Others change nothing where they share nothing; the seed does.
    (alone,) = split_documents([own], lambda count: (count - 1, 1), 3, 2, "a test")
    assert (
        split_documents([own, [(200,), (201,)]], lambda count: (count - 1, 1), 3, 2, "a test")[0]
        == alone
    )
    assert split_documents([own], lambda count: (count - 1, 1), 4, 2, "a test")[0] != alone


def test_too_few_documents_are_refused_with_their_number() -> None:
    copies = [(5, 6, 7), (5, 6)] * 20
    for least, call in (
        (2, lambda: sources.draw_held_out([Source(copies)], 0)),
        (4, lambda: batches.split_sources([TrainingSource(tiny.samples(copies))], 0)),
        (4, lambda: looped.draw_folds([copies], 0)),
        (2, lambda: trials.split_samples(copies, 0.2, 0)),
    ):
        with pytest.raises(
            LaminaError, match=f"at least {least} different documents.* has 1, in samples: 40"
        ):
            call()
    chain = [[(1,), (2,)], [(3,), (4,)], [(1,), (3,)]]
    with pytest.raises(LaminaError, match="in common with others"):
        for seed in range(20):
            split_documents(chain, lambda count: (1, 1), seed, 2, "a test")


def test_copies_make_no_error_bar_narrower() -> None:
    model, texts = tiny.model(), draw_texts() + draw_texts(1)
    found = {
        copies: check.measure_patches(
            model, [Source(texts * copies)], {(1, 3): Patch(0.1 * torch.eye(32))}, seed=0
        )[1, 3]
        for copies in (1, 4)
    }
    for column in ("n_heldout", "heldout_error_stderr", "heldout_error_before_stderr"):
        assert found[4][column] == pytest.approx(found[1][column])
    once, often = (
        variance.diagnose(model, tiny.samples(texts * copies), Variance(), 200) for copies in (1, 4)
    )
    for one, other in zip(once, often, strict=True):
        assert [other[end] for end in ("value", "ci_low", "ci_high")] == pytest.approx(
            [one[end] for end in ("value", "ci_low", "ci_high")], rel=1e-4
        )

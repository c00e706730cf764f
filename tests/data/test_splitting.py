"""A sample that judges is never a copy of one that was fitted on.

Whoever splits, and however often a text is there: each way is compared with the definition.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

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
from lamina.repairs import check
from lamina.selection import looped, trials
from tests.given import tiny
from tests.given.repairs import draw_texts

Text = tuple[int, ...]
N_DIFFERENT = 24
N_COPIES = 120


def repeated_texts(seed: int) -> tuple[list[Text], list[Text]]:
    """Two calibrations of few texts, many times each.

    The second one has half of the first one's texts too, cut at another length.
    """
    generator = random.Random(seed)

    def random_text(first_token: int, length: int) -> Text:
        return (first_token, *(generator.randrange(99) for _ in range(length)))

    own_texts = [random_text(n, generator.randrange(6, 12)) for n in range(N_DIFFERENT)]
    added_texts = [random_text(n, 8) for n in range(100, 100 + N_DIFFERENT)]
    own_copies = [generator.choice(own_texts) for _ in range(N_COPIES)]
    added_copies = [generator.choice(added_texts)[:6] for _ in range(N_COPIES)]
    shared_texts = [text[:5] for text in own_texts[::2]]
    return own_texts + own_copies, shared_texts + added_texts + added_copies


def are_same_document(first: Text, second: Text) -> bool:
    """The definition: one begins with the other."""
    length = min(len(first), len(second))
    return first[:length] == second[:length]


# How each part of lamina splits two calibrations: a number for the side of each text.
Sides = list[list[int]]


def patch_sides(own: list[Text], added: list[Text], seed: int) -> Sides:
    held_out = sources.draw_held_out([Source(own), Source(added, 0.1)], seed)
    return [[int(is_held_out) for is_held_out in flags] for flags in held_out]


def healing_sides(own: list[Text], added: list[Text], seed: int) -> Sides:
    calibrations = [tiny.samples(own), tiny.samples(added)]
    training_sources = [TrainingSource(samples) for samples in calibrations]
    validation_sources = batches.split_sources(training_sources, seed)[1]
    sides = []
    for samples, validation in zip(calibrations, validation_sources, strict=True):
        sides.append([int(sample in validation.samples) for sample in samples])
    return sides


def fold_sides(own: list[Text], added: list[Text], seed: int) -> Sides:
    return looped.draw_folds([own, added], seed)


def search_sides(own: list[Text], added: list[Text], seed: int) -> Sides:
    """What a search sees, and of another calibration what it may fit on."""
    _, held_out = trials.split_samples(own, 0.3, seed)
    fitted_texts = trials.exclude_documents(added, [own[index] for index in held_out])
    assert fitted_texts
    return [
        [int(index in held_out) for index in range(len(own))],
        [int(text not in fitted_texts) for text in added],
    ]


def probe_sides(own: list[Text], added: list[Text], seed: int) -> Sides:
    labels = np.array([str(text[0] % 2) for text in own])
    folds = probe.assign_folds(own, labels, Probe(file="x", folds=4, seed=seed))
    return [folds.tolist()]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "split_texts", [patch_sides, healing_sides, fold_sides, search_sides, probe_sides]
)
def test_no_copy_of_a_text_is_on_two_sides(
    split_texts: Callable[[list[Text], list[Text], int], Sides], seed: int
) -> None:
    own, added = repeated_texts(seed)

    sides = split_texts(own, added, seed)

    sided_texts = []
    for texts, text_sides in zip((own, added), sides, strict=False):
        sided_texts += zip(texts, text_sides, strict=True)
    assert len({side for _, side in sided_texts}) > 1
    for text, side in sided_texts:
        sides_of_copies = {
            other_side for other, other_side in sided_texts if are_same_document(text, other)
        }
        assert sides_of_copies == {side}


def test_documents_are_what_the_definition_says() -> None:
    own, added = repeated_texts(5)

    own_documents, added_documents = index_documents([own, added])

    texts = [*own, *added]
    documents = [*own_documents, *added_documents]
    for text, document in zip(texts, documents, strict=True):
        expected = [are_same_document(text, other) for other in texts]
        assert [document == other for other in documents] == expected
    assert set(documents) == set(range(2 * N_DIFFERENT))
    assert own_documents[:N_DIFFERENT] == list(range(N_DIFFERENT))


def test_a_short_text_ties_those_that_begin_with_it() -> None:
    assert index_documents([[(1, 2, 3), (1, 4)], [(1,)]]) == [[0, 0], [0]]


def test_parts_have_their_sizes_in_documents_of_every_source() -> None:
    own, added = repeated_texts(6)

    parts = split_documents([own, added], lambda count: (count - 10, 6, 4), 3, 2, "a test")

    for texts, text_parts in zip((own, added), parts, strict=True):
        documents_by_part: list[set[int]] = [set(), set(), set()]
        for text, part in zip(texts, text_parts, strict=True):
            documents_by_part[part].add(text[0])
        n_documents = len({text[0] for text in texts})
        sizes = [len(documents) for documents in documents_by_part]
        assert sizes == pytest.approx([n_documents - 10, 6, 4], abs=2)
        assert sum(sizes) == n_documents


def leave_one_out(n_documents: int) -> tuple[int, int]:
    return n_documents - 1, 1


def test_a_source_that_shares_nothing_changes_no_split() -> None:
    own, _ = repeated_texts(6)
    foreign = [(200,), (201,)]

    (alone,) = split_documents([own], leave_one_out, 3, 2, "a test")
    together, _ = split_documents([own, foreign], leave_one_out, 3, 2, "a test")

    assert together == alone


def test_the_seed_decides_a_split() -> None:
    own, _ = repeated_texts(6)
    first = split_documents([own], leave_one_out, 3, 2, "a test")
    assert first != split_documents([own], leave_one_out, 4, 2, "a test")


COPIES = [(5, 6, 7), (5, 6)] * 20  # of one document


@pytest.mark.parametrize(
    ("n_needed", "split_copies"),
    [
        (2, lambda: sources.draw_held_out([Source(COPIES)], 0)),
        (4, lambda: batches.split_sources([TrainingSource(tiny.samples(COPIES))], 0)),
        (4, lambda: looped.draw_folds([COPIES], 0)),
        (2, lambda: trials.split_samples(COPIES, 0.2, 0)),
    ],
    ids=["patches", "healing", "folds", "search"],
)
def test_too_few_documents_are_refused_with_their_number(
    n_needed: int, split_copies: Callable[[], Any]
) -> None:
    message = rf"at least {n_needed} different documents.* has 1 \(samples: 40\)"
    with pytest.raises(LaminaError, match=message):
        split_copies()


def test_sources_that_share_too_many_documents_are_refused() -> None:
    chain = [[(1,), (2,)], [(3,), (4,)], [(1,), (3,)]]
    with pytest.raises(LaminaError, match="shares so many of its .* with others"):
        for seed in range(20):
            split_documents(chain, lambda count: (1, 1), seed, 2, "a test")


def test_copies_make_no_error_bar_of_a_patch_narrower() -> None:
    model = tiny.model()
    texts = draw_texts() + draw_texts(1)
    patches = {(1, 3): Patch(0.1 * torch.eye(32))}

    once = check.measure_patches(model, [Source(texts)], patches, seed=0)[1, 3]
    four_times = check.measure_patches(model, [Source(texts * 4)], patches, seed=0)[1, 3]

    for column in ("n_heldout", "heldout_error_stderr", "heldout_error_before_stderr"):
        assert four_times[column] == pytest.approx(once[column])


def test_copies_make_no_interval_of_a_variance_narrower() -> None:
    model = tiny.model()
    texts = draw_texts() + draw_texts(1)

    once = variance.diagnose(model, tiny.samples(texts), Variance(), 200)
    four_times = variance.diagnose(model, tiny.samples(texts * 4), Variance(), 200)

    for row, repeated_row in zip(once, four_times, strict=True):
        for column in ("value", "ci_low", "ci_high"):
            assert repeated_row[column] == pytest.approx(row[column], rel=1e-4)

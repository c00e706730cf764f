"""Distances between boundaries, against numpy on the streams of each text alone."""

import math

import numpy as np
import pytest
import torch

from lamina.engine.capture import capture_similarities
from lamina.models.structure import layers_of
from tests.given import tiny

N_TEXTS = 7


def draw_texts() -> list[tuple[int, ...]]:
    """Texts of different lengths, so that a batch pads them."""
    return [tuple(tiny.tokens(1, 6 + index, seed=index)[0].tolist()) for index in range(N_TEXTS)]


def test_distances_are_means_over_texts_of_means_over_tokens() -> None:
    """In every text each token counts the same; the angle is that of its last token."""
    model = tiny.model()

    rows = capture_similarities(model, draw_texts(), token_budget=60)

    streams_by_text: list[list[np.ndarray]] = []
    for text in draw_texts():
        streams = tiny.stream(model, torch.tensor([text]), layers_of(model))
        streams_by_text.append([stream[0].double().numpy() for stream in streams])
    row_by_pair = {(row["layer"], row["span"]): row for row in rows}
    for start, end in ((0, 1), (1, 3), (2, 5)):
        distances: list[float] = []
        angles: list[float] = []
        changes: list[float] = []
        for streams in streams_by_text:
            before, after = streams[start], streams[end]
            lengths = np.linalg.norm(before, axis=1)
            cosines = (before * after).sum(axis=1) / lengths / np.linalg.norm(after, axis=1)
            distances.append(1 - cosines.mean())
            angles.append(math.acos(cosines[-1]) / math.pi)
            changes.append((np.linalg.norm(after - before, axis=1) / lengths).mean())
        row = row_by_pair[start, end - start]
        error_of_mean = N_TEXTS**-0.5
        assert row["cosine"] == pytest.approx(np.mean(distances), rel=1e-4)
        assert row["cosine_stderr"] == pytest.approx(
            np.std(distances, ddof=1) * error_of_mean, rel=1e-3
        )
        assert row["angular_last"] == pytest.approx(np.mean(angles), rel=1e-4)
        assert row["angular_last_stderr"] == pytest.approx(
            np.std(angles, ddof=1) * error_of_mean, rel=1e-3
        )
        assert row["l2_relative"] == pytest.approx(np.mean(changes), rel=1e-4)


def test_magnitudes_and_norms_of_a_boundary_are_means_over_texts() -> None:
    model = tiny.model()

    rows = capture_similarities(model, draw_texts(), token_budget=60)

    magnitudes: list[np.ndarray] = []
    norms: list[float] = []
    for text in draw_texts():
        stream = tiny.stream(model, torch.tensor([text]), layers_of(model))[2][0].double().numpy()
        magnitudes.append(np.abs(stream).mean(axis=0))
        norms.append(np.linalg.norm(stream, axis=1).mean())
    [row] = [row for row in rows if (row["layer"], row["span"]) == (2, 0)]
    assert row["channel_magnitude"] == pytest.approx(np.mean(magnitudes, axis=0), rel=1e-4)
    assert row["norm"] == pytest.approx(np.mean(norms), rel=1e-4)
    assert row["n_samples"] == N_TEXTS
    assert row["n_tokens"] == sum(map(len, draw_texts()))

"""Clusters of layers: against scikit-learn on the same matrix, on planted groups, and through the configuration."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score

from lamina.engine.capture import capture_similarities
from lamina.models.load import load_folder
from lamina.options.selectors import Selector
from lamina.selection.choosing import choose_plan, empty_plan
from lamina.selection.plans import Plan, StepEvidence
from lamina.selection.strategies import clusters
from tests import ROOT

KEYS = {"model": "m", "calibration": "c", "selector": "s"}


def planted(
    sizes: list[int], inside: list[float], between: float, noise: float = 0.0
) -> np.ndarray:
    """Similarities of groups of layers, the streams in one group alike by `inside`."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    similar = np.where(group[:, None] == group, np.array(inside)[group][:, None], between)
    drawn = np.random.default_rng(0).normal(0, noise, similar.shape)
    similar = similar + (drawn + drawn.T) / 2
    np.fill_diagonal(similar, 1)
    return similar


def distances(similar: np.ndarray) -> dict[tuple[int, int], float]:
    """Distances between boundaries: boundary l + 1 is what layer l leaves, the first one is as the second."""
    depth = len(similar)
    whole = np.pad(similar, ((1, 0), (1, 0)), mode="edge")
    return {
        (start, span): 1 - whole[start, start + span]
        for start in range(depth)
        for span in range(1, depth + 1 - start)
    }


def plans(
    angles: dict[tuple[int, int], float], depth: int, sizes: range, **options: object
) -> dict[int, Plan]:
    selector = Selector.from_options({"strategy": "clusters", "metric": "cosine", **options})
    return {
        size: choose_plan(
            selector,
            KEYS | {"removed": size},
            depth,
            StepEvidence(distances=angles),
            empty_plan(selector, KEYS | {"removed": 0}),
        )
        for size in sizes
    }


@pytest.mark.parametrize("noise", [0.0, 0.04])
@pytest.mark.parametrize("sizes", [[4, 4], [3, 5, 4], [6, 2, 2, 6]])
def test_groups_are_those_of_scikit_learn_and_the_planted_ones(
    sizes: list[int], noise: float
) -> None:
    similar = planted(sizes, [0.9] * len(sizes), 0.1, noise)
    found = clusters.spectral_clusters(similar, len(sizes))
    theirs = SpectralClustering(
        len(sizes), affinity="precomputed", assign_labels="kmeans", random_state=0
    ).fit(similar)
    assert adjusted_rand_score(found, theirs.labels_) == 1
    assert adjusted_rand_score(found, np.repeat(np.arange(len(sizes)), sizes)) == 1


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_the_number_of_groups_is_that_of_equal_blocks_and_of_the_eigengap(groups: int) -> None:
    similar = planted([4] * groups, [1.0] * groups, 0.0)
    values = np.sort(np.linalg.eigvalsh(similar / similar.sum(axis=1)[:, None]))[::-1]
    assert (
        clusters.count_clusters(similar)
        == groups
        == int(np.argmax(-np.diff(values[: len(values) // 2 + 1]))) + 1
    )


def test_streams_of_a_trained_model_are_grouped_as_by_scikit_learn() -> None:
    model = load_folder(ROOT / "resources/reference", "float32", False)
    generator = np.random.default_rng(0)
    rows = capture_similarities(
        model, [tuple(generator.integers(5, 60, 24).tolist()) for _ in range(20)]
    )
    angles = {(row["layer"], row["span"]): row["cosine"] for row in rows if row["span"]}
    similar = clusters.layer_similarity(angles, 12)
    by_hand = [
        [1.0 if i == j else max(0, 1 - angles[min(i, j) + 1, abs(i - j)]) for j in range(12)]
        for i in range(12)
    ]
    np.testing.assert_allclose(similar, by_hand)
    for groups in (2, 3):
        theirs = SpectralClustering(groups, affinity="precomputed", assign_labels="cluster_qr").fit(
            similar
        )
        assert adjusted_rand_score(clusters.spectral_clusters(similar, groups), theirs.labels_) == 1


def test_most_goes_where_layers_are_most_alike_and_plans_are_nested() -> None:
    """Layers 0-3 are alike by .8, layers 4-9 by .95; in each group the later boundary is a little nearer."""
    similar = planted([4, 6], [0.8, 0.95], 0.05)
    for layer in range(1, 10):
        similar[layer - 1, layer] = similar[layer, layer - 1] = (
            similar[layer - 1, layer] + layer / 1000
        )
    found = plans(distances(similar), 10, range(1, 9))
    # Weights are 3 · .8 and 5 · .95: the first group gives the second and the fifth layer.
    shares = [sum(int(unit) < 4 for unit in found[size].units) for size in range(1, 9)]
    assert shares == [0, 1, 1, 1, 2, 2, 2, 3]
    assert found[1].units == ["9"] and all(
        set(found[n].units) < set(found[n + 1].units) for n in range(1, 8)
    )
    # A group keeps a layer while another one can give one.
    assert len({int(layer) for layer in range(4)} - set(map(int, found[8].units))) == 1
    assert len(set(range(4, 10)) - set(map(int, found[8].units))) == 1


def test_protected_layers_stay() -> None:
    similar = planted([3, 3], [0.9, 0.9], 0.1)
    found = plans(distances(similar), 6, range(1, 5), protect=[0, -1])
    assert (
        all(not {"0", "5"} & set(plan.units) for plan in found.values())
        and len(found[4].units) == 4
    )
    assert all(set(one.units) < set(other.units) for one, other in combinations(found.values(), 2))

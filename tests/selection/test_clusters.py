"""Clusters of layers: against scikit-learn on the same similarities, and against planted groups."""

from itertools import pairwise

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
from tests.selection.examples import KEYS


def planted_similarities(
    group_sizes: list[int], within: list[float], between: float, noise: float = 0.0
) -> np.ndarray:
    """Similarities (layers, layers) of groups of neighbouring layers.

    within: Of each group, the similarity of its layers.
    """
    group = np.repeat(np.arange(len(group_sizes)), group_sizes)
    is_same_group = group[:, None] == group
    similarities = np.where(is_same_group, np.array(within)[group], between)
    errors = np.random.default_rng(0).normal(0, noise, similarities.shape)
    similarities = similarities + (errors + errors.T) / 2
    np.fill_diagonal(similarities, 1)
    return similarities


def boundary_distances(similarities: np.ndarray) -> dict[tuple[int, int], float]:
    """Distances of boundary start + span from boundary start, by (start, span).

    Boundary l + 1 is what layer l leaves; boundary 0 is here as boundary 1.
    """
    depth = len(similarities)
    boundary_similarities = np.pad(similarities, ((1, 0), (1, 0)), mode="edge")
    distances: dict[tuple[int, int], float] = {}
    for start in range(depth):
        for span in range(1, depth + 1 - start):
            distances[start, span] = 1 - boundary_similarities[start, start + span]
    return distances


def choose_plans(
    similarities: np.ndarray, sizes: range, protect: tuple[int, ...] = ()
) -> dict[int, Plan]:
    """The plan of each size."""
    selector = Selector.from_options(
        {"strategy": "clusters", "metric": "cosine", "protect": list(protect)}
    )
    evidence = StepEvidence(distances=boundary_distances(similarities))
    previous = empty_plan(selector, KEYS | {"removed": 0})
    plans: dict[int, Plan] = {}
    for size in sizes:
        keys = KEYS | {"removed": size}
        plans[size] = choose_plan(selector, keys, len(similarities), evidence, previous)
    return plans


@pytest.mark.parametrize("noise", [0.0, 0.04])
@pytest.mark.parametrize("group_sizes", [[4, 4], [3, 5, 4], [6, 2, 2, 6]])
def test_groups_are_the_planted_ones_and_those_of_scikit_learn(
    group_sizes: list[int], noise: float
) -> None:
    n_groups = len(group_sizes)
    similarities = planted_similarities(group_sizes, [0.9] * n_groups, 0.1, noise)

    groups = clusters.spectral_clusters(similarities, n_groups)

    planted_groups = np.repeat(np.arange(n_groups), group_sizes)
    sklearn_clustering = SpectralClustering(
        n_groups, affinity="precomputed", assign_labels="kmeans", random_state=0
    ).fit(similarities)
    assert adjusted_rand_score(groups, planted_groups) == 1
    assert adjusted_rand_score(groups, sklearn_clustering.labels_) == 1


@pytest.mark.parametrize("n_groups", [1, 2, 3, 4])
def test_the_number_of_groups_is_that_of_equal_blocks(n_groups: int) -> None:
    similarities = planted_similarities([4] * n_groups, [1.0] * n_groups, 0.0)

    assert clusters.count_clusters(similarities) == n_groups


def test_streams_of_a_trained_model_are_grouped_as_by_scikit_learn() -> None:
    model = load_folder(ROOT / "resources/reference", "float32", False)
    generator = np.random.default_rng(0)
    sequences = [tuple(generator.integers(5, 60, 24).tolist()) for _ in range(20)]
    distances: dict[tuple[int, int], float] = {}
    for row in capture_similarities(model, sequences):
        if row["span"]:
            distances[row["layer"], row["span"]] = row["cosine"]

    similarities = clusters.layer_similarity(distances, 12)

    for i in range(12):
        assert similarities[i, i] == 1
        for j in range(i + 1, 12):
            expected = max(0, 1 - distances[i + 1, j - i])
            assert similarities[i, j] == similarities[j, i] == pytest.approx(expected)
    for n_groups in (2, 3):
        groups = clusters.spectral_clusters(similarities, n_groups)
        sklearn_clustering = SpectralClustering(
            n_groups, affinity="precomputed", assign_labels="cluster_qr"
        ).fit(similarities)
        assert adjusted_rand_score(groups, sklearn_clustering.labels_) == 1


def test_most_layers_go_where_they_are_most_alike_and_plans_are_nested() -> None:
    """Layers 0-3 are alike by .8, layers 4-9 by .95; in each group the later ones a little more.

    The groups weigh 3 · .8 and 5 · .95, so the first one gives the second and the fifth layer.
    """
    similarities = planted_similarities([4, 6], [0.8, 0.95], 0.05)
    for layer in range(1, 10):
        similarity = similarities[layer - 1, layer] + layer / 1000
        similarities[layer - 1, layer] = similarity
        similarities[layer, layer - 1] = similarity

    plans = choose_plans(similarities, range(1, 9))

    n_of_first_group: list[int] = []
    for plan in plans.values():
        units_of_first_group = [unit for unit in plan.units if int(unit) < 4]
        n_of_first_group.append(len(units_of_first_group))
    assert n_of_first_group == [0, 1, 1, 1, 2, 2, 2, 3]
    assert plans[1].units == ["9"]
    for plan, larger_plan in pairwise(plans.values()):
        assert set(plan.units) < set(larger_plan.units)
    # A group keeps a layer while another one has two.
    removed_layers = {int(unit) for unit in plans[8].units}
    assert len({0, 1, 2, 3} - removed_layers) == 1
    assert len({4, 5, 6, 7, 8, 9} - removed_layers) == 1


def test_protected_layers_stay() -> None:
    similarities = planted_similarities([3, 3], [0.9, 0.9], 0.1)

    plans = choose_plans(similarities, range(1, 5), protect=(0, -1))

    assert set(plans[4].units) == {"1", "2", "3", "4"}
    for plan, larger_plan in pairwise(plans.values()):
        assert set(plan.units) < set(larger_plan.units)

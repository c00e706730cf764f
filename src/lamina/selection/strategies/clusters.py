"""Clusters of layers that leave similar streams share the removals [after LoRP, arXiv 2605.27786].

It only reads the distances between boundaries of the base model: one pass, no answers. The paper
gives no formula for the number of clusters and their shares; the docstrings of the functions state
those used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from lamina.options.metrics import MetricName
from lamina.options.selectors import Selector, metric_of_runs_option

if TYPE_CHECKING:
    import numpy as np

    from lamina.selection.plans import Plan, PlanRequest, StepEvidence


class Clusters(Selector):
    """Clusters layers with similar output streams and removes those that turn the stream least.

    Clusters of similar layers lose the most layers. A larger plan contains the smaller ones.
    """

    CAPTURED = True
    CHOICE = (
        "layers with similar output streams were clustered, and those that turn the residual "
        "stream least were removed from the clusters"
    )

    strategy: Literal["clusters"] = "clusters"
    metric: MetricName = metric_of_runs_option()


@dataclass
class Cluster:
    """Layers that leave similar streams, and how many of them are removed so far."""

    layers: list[int]
    removable: list[int]
    """Layers that are not protected. The layer whose ends are the least distant comes first."""
    weight: float
    """(layers - 1) · mean similarity of two layers."""
    removed: list[int] = field(default_factory=list)

    @property
    def has_removable(self) -> bool:
        return len(self.removed) < len(self.removable)

    @property
    def keeps_another(self) -> bool:
        """Whether the cluster keeps a layer after the next removal."""
        return len(self.removed) < len(self.layers) - 1

    @property
    def priority(self) -> tuple[float, int]:
        """d'Hondt's quotient, which makes removals proportional to weights; ties go deeper."""
        return self.weight / (1 + len(self.removed)), self.layers[-1]


def choose(request: PlanRequest, step: StepEvidence, previous: Plan) -> Plan:
    """Each removal takes a layer of the cluster with the largest weight / (1 + removed) (d'Hondt).

    A cluster keeps a layer as long as another cluster can give one. Within a cluster, the layer
    with the smallest distance between its ends is removed first.
    """
    clusters = find_clusters(request, step)
    for _ in range(request.removed):
        able_clusters = [cluster for cluster in clusters if cluster.has_removable]
        spare_clusters = [cluster for cluster in able_clusters if cluster.keeps_another]
        next_cluster = max(spare_clusters or able_clusters, key=lambda cluster: cluster.priority)
        next_cluster.removed.append(next_cluster.removable[len(next_cluster.removed)])
    removed_layers = sorted(layer for cluster in clusters for layer in cluster.removed)
    return replace(
        previous,
        removed=request.removed,
        units=[str(layer) for layer in removed_layers],
        scores=[step.distances[layer, 1] for layer in removed_layers],
    )


def find_clusters(request: PlanRequest, step: StepEvidence) -> list[Cluster]:
    """The clusters of a model's layers, with nothing removed."""
    similarity = layer_similarity(step.distances, request.n_layers)
    labels = spectral_clusters(similarity, count_clusters(similarity))
    clusters: list[Cluster] = []
    for label in set(labels):
        cluster_layers = [layer for layer in range(request.n_layers) if labels[layer] == label]
        removable_layers = sorted(
            set(cluster_layers) - request.protected,
            key=lambda layer: (step.distances[layer, 1], -layer),
        )
        cluster_weight = (len(cluster_layers) - 1) * _mean_similarity(similarity, cluster_layers)
        clusters.append(Cluster(cluster_layers, removable_layers, cluster_weight))
    return clusters


def layer_similarity(distances: Mapping[tuple[int, int], float], n_layers: int) -> np.ndarray:
    """1 - distance of the streams that layers i and j leave, at least 0: (L, L), symmetric.

    distances: Between boundaries start and start + span, by (start, span). Layer i leaves boundary
        i + 1.
    """
    import numpy as np

    similarity = np.eye(n_layers)
    for (start, span), distance in distances.items():
        if start:
            first = start - 1
            second = start + span - 1
            similarity[first, second] = similarity[second, first] = max(0.0, 1 - distance)
    return similarity


def count_clusters(similarity: np.ndarray) -> int:
    """The number of groups in similarities (L, L): 1 / (mean of their squares), at most L / 2."""
    n_groups = round(1 / float((similarity**2).mean()))
    return max(1, min(n_groups, len(similarity) // 2))


def spectral_clusters(similarity: np.ndarray, n_clusters: int) -> list[int]:
    """The cluster of each layer, by normalised spectral clustering of an affinity S (L, L).

    The leading eigenvectors of D^-½ S D^-½, divided by the roots of the degrees D, are assigned by
    a pivoted QR decomposition [Damle, Minden and Ying 2019], which needs no random draws.
    """
    import numpy as np
    from scipy.linalg import qr

    root_degrees = np.sqrt(similarity.sum(axis=1))
    _, eigenvectors = np.linalg.eigh(similarity / root_degrees[:, None] / root_degrees)
    leading_vectors = eigenvectors[:, ::-1][:, :n_clusters] / root_degrees[:, None]
    _, _, pivots = qr(leading_vectors.T, pivoting=True)
    left, _, right = np.linalg.svd(leading_vectors[pivots[:n_clusters]].T)
    return [int(label) for label in np.abs(leading_vectors @ left @ right).argmax(axis=1)]


def _mean_similarity(similarity: np.ndarray, layers: list[int]) -> float:
    """Mean similarity of two different layers of a cluster; 0 for a single layer."""
    pairs = [similarity[i, j] for i in layers for j in layers if i != j]
    return float(sum(pairs) / len(pairs)) if pairs else 0.0

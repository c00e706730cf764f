"""Clusters of layers that leave similar streams; removals are spread over the clusters [after LoRP, arXiv 2605.27786].

The distances between boundaries of the unpruned model are all that is read: one pass, no answers. The paper gives no
formula for the number of clusters and the shares; those here are stated with their functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lamina.config.metrics import MetricName
from lamina.config.selectors import Selector, metric_of_runs_option

if TYPE_CHECKING:
    import numpy as np

    from lamina.selection.plans import Plan, Request, Step


class Clusters(Selector):
    """Groups layers that leave similar streams, and removes from each group those that turn the stream least.

    Most goes where layers are most alike. Plans of growing size are nested.
    """

    CAPTURED = True
    CHOICE = "layers that leave similar streams were grouped, and of each group those went that turn the stream least"

    strategy: Literal["clusters"] = "clusters"
    metric: MetricName = metric_of_runs_option()


def choose(request: Request, step: Step, previous: Plan) -> Plan:
    """The next layer comes from the cluster with the largest w / (1 + removed), w = (layers - 1) · mean similarity.

    That is d'Hondt's rule, by which the shares follow the weights w. A cluster keeps a layer as long as another one
    can give one. Within a cluster the layer with the least distance between its ends goes first.
    """
    similar = similarities(step.angles, request.n_layers)
    labels = grouped(similar, count(similar))
    groups = {
        label: [layer for layer in range(request.n_layers) if labels[layer] == label]
        for label in set(labels)
    }
    weights = {label: (len(group) - 1) * _inside(similar, group) for label, group in groups.items()}
    free = {
        label: sorted(
            set(group) - request.protected, key=lambda layer: (step.angles[layer, 1], -layer)
        )
        for label, group in groups.items()
    }
    removed: dict[int, list[int]] = {label: [] for label in groups}
    for _ in range(request.removed):
        able = [label for label in groups if len(removed[label]) < len(free[label])]
        spare = [label for label in able if len(removed[label]) < len(groups[label]) - 1] or able
        label = max(
            spare, key=lambda each: (weights[each] / (1 + len(removed[each])), groups[each][-1])
        )
        removed[label].append(free[label][len(removed[label])])
    layers = sorted(layer for gone in removed.values() for layer in gone)
    return replace(
        previous,
        removed=request.removed,
        units=[str(layer) for layer in layers],
        scores=[step.angles[layer, 1] for layer in layers],
    )


def similarities(angles: Mapping[tuple[int, int], float], n_layers: int) -> np.ndarray:
    """1 - distance of the streams that layers i and j leave, (L, L), at least 0; `angles` are those of a `Step`."""
    import numpy as np

    similar = np.eye(n_layers)
    for (start, span), distance in angles.items():
        if start:
            similar[start - 1, start + span - 1] = similar[start + span - 1, start - 1] = max(
                0.0, 1 - distance
            )
    return similar


def count(similar: np.ndarray) -> int:
    """How many groups the similarities (L, L) hold: 1 / (mean of their squares), at most half of the layers."""
    return max(1, min(round(1 / float((similar**2).mean())), len(similar) // 2))


def grouped(similar: np.ndarray, clusters: int) -> list[int]:
    """The cluster of each layer, by normalised spectral clustering [Shi and Malik 2000] of an affinity (L, L).

    The leading eigenvectors of D^-½ S D^-½, divided by the roots of the degrees D, are assigned by a pivoted QR
    decomposition [Damle, Minden and Ying 2019], which draws nothing.
    """
    import numpy as np
    from scipy.linalg import qr

    roots = np.sqrt(similar.sum(axis=1))
    _, vectors = np.linalg.eigh(similar / roots[:, None] / roots)
    leading = vectors[:, ::-1][:, :clusters] / roots[:, None]
    _, _, pivots = qr(leading.T, pivoting=True)
    left, _, right = np.linalg.svd(leading[pivots[:clusters]].T)
    return [int(label) for label in np.abs(leading @ left @ right).argmax(axis=1)]


def _inside(similar: np.ndarray, group: list[int]) -> float:
    """Mean similarity of different layers of a group; 0 for a single layer."""
    pairs = [similar[one, other] for one in group for other in group if one != other]
    return float(sum(pairs) / len(pairs)) if pairs else 0.0

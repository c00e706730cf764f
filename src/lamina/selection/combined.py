"""A removal scored on several calibrations at once, such as a task and general text: `also` of a selector.

Every calibration has its own sweep of the same model and its own relevance by the selector's metric, relative to the
results of that model on the calibration. `mean` is Σ w s / Σ w, and `worst` is the largest w s. The variant's own
calibration has w = 1.
"""

from collections.abc import Sequence
from dataclasses import replace

from lamina.selection.plans import Step


def mixed(steps: Sequence[Step], weights: Sequence[float], combine: str) -> Step:
    """The first of `steps`, which is of the own calibration, with its units ranked by the scores of all.

    A calibration does not count if the metric is undefined on it (accuracy at chance). If it is undefined on the own
    one, that one ranks alone, as without the others. A unit whose removal gives no numbers on one of them is removed
    last. Of units with equal scores the deeper one is removed first.
    """
    scores = [dict(step.ranked) for step in steps]
    if not _tells(scores[0]):
        return steps[0]
    telling = [
        (step_scores, weight) for step_scores, weight in zip(scores, weights, strict=True) if _tells(step_scores)
    ]
    total = sum(weight for _, weight in telling)

    def score(unit: str) -> float | None:
        weighted = [weight * value for step_scores, weight in telling if (value := step_scores.get(unit)) is not None]
        if len(weighted) < len(telling):
            return None
        return max(weighted) if combine == "worst" else sum(weighted) / total

    totals = {unit: score(unit) for unit in scores[0]}

    def place(unit: str) -> tuple[float, int]:
        value = totals[unit]
        return (float("inf") if value is None else round(value, 12)), -int(unit.split(".")[0])

    return replace(steps[0], ranked=[(unit, totals[unit]) for unit in sorted(totals, key=place)])


def _tells(scores: dict[str, float | None]) -> bool:
    return any(score is not None for score in scores.values())

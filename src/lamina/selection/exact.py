"""Budget `exact`: the same least relevant unit as a full sweep, without measuring every unit on every sample.

Losses are never below 0. So once one unit has been measured on all samples, every other one is out as soon as its
losses so far exceed that unit's total: even if all its remaining samples were best, it could not become the minimum. A
unit is ruled out soonest on the samples that are likely to be answered wrong. The model before the removal, which is
the last step's choice, shows how likely that is: by its margin between the right answer and the best wrong one.

First a few random samples tell the few units that may be the minimum from the rest, which waits. Those few see all
samples, and with them, at little cost, the model before the removal. Then the rest sees the hard samples first, until
each is ruled out. The result never depends on a guess: a unit that was put off by mistake is measured until it is ruled
out, and if it is not, it becomes the minimum.

The losses of a unit that was ruled out are not a random sample: they bound the sum of its losses from below, and say
nothing of the mean.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.engine.candidates import Candidate
from lamina.selection.evaluator import Evaluator

# Samples between two looks, later an eighth of those seen: enough to fill batches.
FIRST, GROWTH = 16, 8
# A unit is put off if it is behind by so many standard errors.
BEHIND = 1.5
# A candidate's total must exceed the best one by more than what rounding could do.
ROUNDING = 1e-9


def run(
    evaluator: Evaluator, candidates: Sequence[Candidate], budget: dict[str, Any], chance: float
) -> Candidate | None:
    """Measure until only the best of `candidates` (and those that tie with it) can be the minimum.

    evaluator: It measures the model before the removal beside the candidates, which all lack one unit of that model.
    budget: `seed`, which draws the order of the first samples.
    chance: Accuracy of guessing. Accuracy relevance cannot rank removals at chance. So if the best candidate is not
        above chance, every candidate is measured on every sample.

    Returns the best candidate. None where losses do not decide (several tie, or are at chance). The possible candidates
    have then been measured on all samples, and the ranking of their scores decides, as in a full sweep.
    """
    count, loss = evaluator.count, evaluator.loss
    values = {candidate: np.full(count, np.nan) for candidate in candidates}

    def measure(those: Sequence[Candidate], numbers: list[int]) -> None:
        for one, losses in zip(those, evaluator.losses(those, numbers), strict=True):
            values[one][numbers] = losses

    def total(one: Candidate) -> float:
        return float(np.nansum(values[one]))

    drawn = np.random.default_rng(budget["seed"]).permutation(count).tolist()
    at, ahead = 0, list(candidates)
    while at < count:
        end = min(count, at + max(FIRST, at // GROWTH)) if len(ahead) > 1 else count
        measure(ahead, drawn[at:end])
        at, leader = end, min(ahead, key=total)
        best = values[leader][drawn[:at]]
        ahead = [one for one in ahead if _may_be_least(values[one][drawn[:at]], best, count)]

    at_chance = loss.metric.at_chance(total(leader) / count, chance)
    hard_first = _hard_first(evaluator, candidates, values[leader]) if len(candidates) > 1 else []
    while True:
        known = {one: not np.isnan(values[one]).any() for one in candidates}
        least = min(total(one) for one in candidates if known[one]) * (1 + ROUNDING) + ROUNDING
        possible = [one for one in candidates if at_chance or total(one) <= least]
        back = [one for one in possible if not known[one]]
        if not back:
            return possible[0] if len(possible) == 1 and not at_chance else None
        lacked = np.any([np.isnan(values[one]) for one in back], axis=0).tolist()
        lacking = [number for number in hard_first if lacked[number]]
        # With fewer samples nobody could leave.
        bound = loss.metric.bound
        needed = 0 if bound is None else int((least - max(map(total, back))) / bound) + 1
        size = max(FIRST, (count - len(lacking)) // GROWTH, needed)
        measure(back, lacking[: None if at_chance else size])


def _may_be_least(losses: np.ndarray, best: np.ndarray, count: int) -> bool:
    """Whether losses on some of `count` samples are as good as the `best` losses on the same samples, or almost."""
    if not np.isfinite(losses.sum()):
        return not np.isfinite(best.sum())
    behind, left = losses - best, 1 - len(best) / count
    return bool(behind.sum() <= BEHIND * np.sqrt(np.square(behind).sum() * left))


def _hard_first(
    evaluator: Evaluator, candidates: Sequence[Candidate], losses: np.ndarray
) -> list[int]:
    """The numbers of all samples, those with the largest expected loss first: by the metric, or else by `losses`."""
    current = Candidate(frozenset.intersection(*(candidate.removed for candidate in candidates)))
    difficulty = evaluator.loss.metric.difficulty(evaluator.values(current), evaluator.loss.score)
    expected = losses if difficulty is None else difficulty.ravel()
    return [int(number) for number in np.argsort(-expected, kind="stable")]

"""Layer-tokens of searches, and of metrics that draw models: both run as in a job, but nothing is measured.

The engine's tree counts the models that they ask for. They are told losses that are 0, or random numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lamina.cost.tokens import Tokens
from lamina.cost.work import alone, plan
from lamina.engine.candidates import Candidate, grow
from lamina.models.units import all_units, parse
from lamina.modules import load
from lamina.selection import contest
from lamina.selection.trials import Trials

SAMPLES = 100  # which stand for those of a calibration


def drawn_work(tokens: Tokens, n_layers: int, removed: int, pass_: str, options: Any, kind: str) -> tuple[float, float]:
    """Layer-tokens of a sweep by `shapley` or `presence`, by the engine and naively, at most.

    Every order counts as if it ran to its end.
    """
    current, known, work = plan(n_layers, removed, kind), set[Candidate](), np.zeros(2)
    there = all_units(n_layers, kind, list(current.removed))

    def value(lacking: Sequence[frozenset[int]]) -> np.ndarray:
        new = {current.without(*(there[number] for number in lack)) for lack in lacking} - known
        known.update(new)
        work[:] += _layers(list(new), n_layers)
        return np.zeros((len(lacking), 1))

    value([frozenset()])
    with np.errstate(invalid="ignore"):
        load(f"lamina.relevance.metrics.{pass_}").estimate(len(there), value, None, options, 0)
    return float(tokens.packed * work[0]), float(tokens.rows * work[1])


def search_work(tokens: Tokens, n_layers: int, sizes: Sequence[int], options: Any) -> tuple[float, float]:
    """Layer-tokens of a search for sets of these sizes, with its rivals and judges, by the engine and naively.

    `options` are those of the selector. Units lose random amounts, so that the sets that a search keeps have units in
    common, as with true losses.
    """
    draw, work = np.random.default_rng(0), np.zeros(2)
    lost = defaultdict[str, float](draw.random)

    class Rehearsed:
        def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
            shown = len(list(numbers))
            work[:] += _layers(candidates, n_layers) * shown / SAMPLES
            # What units lose together is more or less than the sum.
            sums = [sum(lost[unit] for unit in sorted(each.removed)) for each in candidates]
            return (np.array(sums) * draw.uniform(0.5, 1.5, len(sums)))[:, None].repeat(shown, axis=1)

    free = options.free(n_layers)
    units = [unit for unit in all_units(n_layers, options.units) if free[parse(unit)[0]]]
    held_back, seen = np.split(np.arange(SAMPLES), [min(max(1, round(SAMPLES * options.held_back)), SAMPLES - 1)])
    lengths = np.full(SAMPLES, tokens.stream / SAMPLES)
    contest.run(Trials(Rehearsed(), SAMPLES), units, sizes, options, seen, held_back, lengths)
    return float(tokens.packed * work[0]), float(tokens.rows * work[1])


def _layers(models: Sequence[Candidate], n_layers: int) -> np.ndarray:
    """Layers that a token runs through in a pass of these models, by the engine and naively."""
    return np.array([grow(models, [], n_layers, True).layers, alone(models, n_layers)])

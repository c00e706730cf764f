"""Layer-tokens of searches, which run as in a job, but nothing is measured.

The engine's tree counts the models that they ask for. The losses are random numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lamina.cost.tokens import Tokens
from lamina.cost.work import alone
from lamina.engine.candidates import Candidate, grow
from lamina.models.units import all_units, parse
from lamina.selection.trials import Trials, run

SAMPLES = 100  # which stand for those of a calibration


def search_work(tokens: Tokens, n_layers: int, sizes: Sequence[int], options: Any) -> tuple[float, float]:
    """Layer-tokens of a search for sets of these sizes and their measurement at the end, by the engine and naively.

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
    run(Trials(Rehearsed(), SAMPLES), units, sizes, options, seen, held_back, lengths)
    return float(tokens.packed * work[0]), float(tokens.rows * work[1])


def _layers(models: Sequence[Candidate], n_layers: int) -> np.ndarray:
    """Layers that a token runs through in a pass of these models, by the engine and naively."""
    return np.array([grow(models, [], n_layers, True).layers, alone(models, n_layers)])

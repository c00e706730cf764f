"""The work of a search, which no formula gives: the search itself runs, on losses that are drawn."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lamina.cost.work import Tokens, alone
from lamina.engine.candidates import Candidate, grow
from lamina.models.units import all_units, parse
from lamina.modules import load
from lamina.selection.plans import UnitPrices
from lamina.selection.trials import Trials, run

SEARCHED = 100  # samples of the rehearsal, which stand for those of a calibration


def search_work(
    tokens: Tokens, n_layers: int, sizes: Sequence[int], options: Any, attention: float = 0.0
) -> tuple[float, float]:
    """Layer-tokens of a search for sets of these sizes and their measurement at the end, by the engine and naively.

    Nothing is measured: the engine's tree counts the models that the search asks for. `options` are those of the
    selector, and `attention` is the share of a layer that its attention has. Units lose random amounts, so that the
    sets that a search keeps have units in common, as with true losses.
    """
    draw, work = np.random.default_rng(0), np.zeros(2)
    lost = defaultdict[str, float](draw.random)

    class Rehearsed:
        def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
            shown = len(list(numbers))
            layers = [grow(candidates, [], n_layers, True).layers, alone(candidates, n_layers)]
            work[:] += np.array(layers) * shown / SEARCHED
            # What units lose together is more or less than the sum.
            sums = [sum(lost[unit] for unit in sorted(each.removed)) for each in candidates]
            return (np.array(sums) * draw.uniform(0.5, 1.5, len(sums)))[:, None].repeat(
                shown, axis=1
            )

    free = options.free(n_layers)
    units = [unit for unit in all_units(n_layers, options.units) if free[parse(unit)[0]]]
    trials = Trials(Rehearsed(), SEARCHED, prices=UnitPrices(options.units, attention))
    own: Any = load(f"{options.PACKAGE}.{options.strategy}")
    if hasattr(own, "rehearse"):
        own.rehearse(trials, units, sizes, options, round(SEARCHED * options.held_back))
        return float(tokens.packed * work[0]), float(tokens.rows * work[1])
    held_back, seen = np.split(
        np.arange(SEARCHED), [min(max(1, round(SEARCHED * options.held_back)), SEARCHED - 1)]
    )
    lengths = np.full(SEARCHED, tokens.stream / SEARCHED)
    run(trials, units, sizes, options, seen, held_back, lengths)
    return float(tokens.packed * work[0]), float(tokens.rows * work[1])

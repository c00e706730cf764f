"""Passes `shapley` and `presence`: what units are worth to random cut models that each lack several units.

The models that are asked for together are candidates of one pass, so they share the stream before their first cut.
The engine measures no model twice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lamina.config.metrics import METRICS, drawing
from lamina.data.calibrations import Calibration
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.scores import or_null
from lamina.modules import load
from lamina.relevance.statistics import wilson_interval
from lamina.selection.evaluator import Evaluator
from lamina.selection.losses import loss_of


def rows(
    model: PreTrainedModel,
    calibration: Calibration,
    units: Sequence[str],
    removed: Sequence[str],
    metric: str,
    told: dict[str, Any],
    tokens: int,
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` (without its keys): those of the current model, and for each unit its part in the value
    of the current model on each sample.

    The value of a cut model is minus its loss; for accuracy, whether it is right. A model whose accuracy is not
    above chance (95 %) counts as a model without units. If the current model is such a model, all values are null.

    Parameters
    ----------
    metric
        `shapley` or `presence`.
    told
        The metric's `options`, the `score` by which accuracy compares choices, and the `seed`.
    """
    options = drawing(metric, told["options"])
    loss = loss_of(options.value, told["score"])
    current, count = Candidate(frozenset(removed)), len(calibration.samples)
    outputs = METRICS[options.value].column.startswith("output_")
    with engine.opened(model, calibration.samples, tokens, outputs) as session:
        evaluator = Evaluator(session, loss, named={current: CURRENT})

        def value(lacking: Sequence[frozenset[int]]) -> np.ndarray:
            cut = [current.without(*(units[number] for number in lack)) for lack in lacking]
            return -evaluator.losses(cut, range(count))

        floor = None
        if options.value == "accuracy":
            # Losses count errors, so accuracy less 1; the highest share of right answers that may be a guess.
            chance = calibration.facts["chance_accuracy"]
            right = [n for n in range(count + 1) if wilson_interval(n, count)[0] <= chance]
            floor = max(right) / count - 1 + 1e-9
        whole = value([frozenset()])[0]
        parts, errors = np.full((len(units), count), np.nan), np.full(len(units), np.nan)
        if floor is None or whole.mean() > floor:
            module = load(f"lamina.relevance.metrics.{metric}")
            with np.errstate(invalid="ignore"):
                parts, errors = module.estimate(len(units), value, floor, options, told["seed"])
            parts = np.where(np.isfinite(parts), parts, np.inf)
        own = session.scores.rows([CURRENT])
    values = [
        {"unit": unit, "sample": sample.index, metric: or_null(part), f"{metric}_error": or_null(error)}
        for unit, of_unit, error in zip(units, parts, errors, strict=True)
        for sample, part in zip(calibration.samples, of_unit, strict=True)
    ]
    return own + values

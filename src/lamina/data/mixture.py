"""A calibration mixed from others, tasks and texts alike."""

import random
from collections.abc import Mapping
from dataclasses import replace

from lamina.config.calibrations import Mixture
from lamina.data.calibrations import Calibration, Sample
from lamina.data.task_groups import shares
from lamina.errors import LaminaError


def mixed(name: str, entry: Mixture, parts: Mapping[str, Calibration]) -> list[Sample]:
    """Samples drawn from `parts` by seed, in shares of the entry's weights: its `limit`, or as many as there are.

    Raises
    ------
    LaminaError
        If a part has fewer samples than its share.
    """
    weights = [entry.mixture[source] for source in parts]
    # The part that is used up first limits the number of samples.
    bounds = {source: len(parts[source].samples) * sum(weights) / entry.mixture[source] for source in parts}
    scarce = min(bounds, key=lambda source: bounds[source])
    most = int(bounds[scarce] + 1e-9)
    if entry.limit and entry.limit > most:
        raise LaminaError(
            f"calibrations.{name}.limit: {entry.limit} samples are asked for, and the {len(parts[scarce].samples)} of "
            f"'{scarce}' are enough for {most}. Write at most {most}, or more samples of '{scarce}'."
        )
    drawn: list[Sample] = []
    for part, count in zip(parts.values(), shares(entry.limit or most, weights), strict=True):
        chosen = sorted(random.Random(entry.seed).sample(range(len(part.samples)), count))
        drawn += [part.samples[number] for number in chosen]
    return [replace(sample, index=number) for number, sample in enumerate(drawn)]

"""What `tokens: auto` means in a job: the largest budget whose predicted memory fits beside the model."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import footprint, packing
from lamina.engine.budgets import HOST
from lamina.engine.footprint import Shape

_LINE = 512  # tokens of a line where there are no samples


def tokens(
    asked: int | str, model: PreTrainedModel, samples: Sequence[Sample], streams: int | None = None
) -> int:
    """The budget that is `asked` for: a number, or `auto`.

    The pass is one of the engine that carries up to `streams`; without `streams`, it keeps those at all boundaries.
    """
    if asked != "auto":
        return int(asked)
    shape = Shape.of(model.config, model.dtype.itemsize)
    lines = [line for number, sample in enumerate(samples) for line in packing.pack(number, sample)]
    lengths = {len(line.tokens) for line in lines} or {_LINE}
    scored = max((len(packing.scored_positions(line)) for line in lines), default=1)

    def predicted(budget: int) -> int:
        # As many lines as the budget holds, even if there are fewer: the budget must not follow their number.
        if streams is None:
            return footprint.capture(shape, budget, max(lengths), max(len(lines), budget))
        return footprint.sweep(shape, budget, lengths, max(len(lines), budget), scored, streams)

    return footprint.budget(room(model), predicted)


def room(model: PreTrainedModel) -> int:
    """Bytes that a pass may take: half of the free memory of the model's fullest device, or HOST on a CPU."""
    devices = {
        parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"
    }
    return min((torch.cuda.mem_get_info(device)[0] // 2 for device in devices), default=HOST)

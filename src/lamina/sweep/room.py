"""What `tokens: auto` means in a job: the largest budget whose predicted memory fits beside the model."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.streams import footprint
from lamina.streams.footprint import HOST, Shape
from lamina.sweep import packing

_LINE = 512  # tokens of a line where no samples tell


def tokens(asked: int | str, model: PreTrainedModel, samples: Sequence[Sample], streams: int | None = None) -> int:
    """The budget that is `asked` for: a number, or `auto`.

    Of a pass of the engine that carries up to `streams`, or else of one that keeps the streams at all boundaries.
    """
    if asked != "auto":
        return int(asked)
    shape = Shape.of(model.config, model.dtype.itemsize)
    lines = [line for number, sample in enumerate(samples) for line in packing.pack(number, sample)]
    lengths = {len(line.tokens) for line in lines} or {_LINE}
    scored = max((len(packing.scored_positions(line)) for line in lines), default=1)

    def predicted(budget: int) -> int:
        # Of as many lines as the budget asks for, however few there are: memory must not follow their number.
        if streams is None:
            return footprint.capture(shape, budget, max(lengths), max(len(lines), budget))
        return footprint.sweep(shape, budget, lengths, max(len(lines), budget), scored, streams)

    return footprint.budget(room(model), predicted)


def room(model: PreTrainedModel) -> int:
    """Bytes that a pass may take: half of what is free on the model's device with the least, on a CPU HOST."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    return min((torch.cuda.mem_get_info(device)[0] // 2 for device in devices), default=HOST)

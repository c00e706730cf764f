"""Resolves `tokens: auto` in a job: the largest budget whose predicted memory is free."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import footprint, packing
from lamina.engine.budgets import HOST_BYTES
from lamina.engine.footprint import Shape
from lamina.engine.packing import Line

DEFAULT_LINE = 512  # tokens of a line where there are no samples


def choose_token_budget(
    requested_budget: int | str,
    model: PreTrainedModel,
    samples: Sequence[Sample],
    max_streams: int | None = None,
) -> int:
    """The budget of a pass in token positions.

    requested_budget: The budget, or `auto`.
    max_streams: The largest number of streams that a pass carries; None for a pass that keeps the
        streams at all boundaries.
    """
    if requested_budget != "auto":
        return int(requested_budget)
    shape = Shape.of(model.config, model.dtype.itemsize)
    lines: list[Line] = []
    for sample_index, sample in enumerate(samples):
        lines += packing.pack_sample(sample_index, sample)
    line_lengths = {len(line.tokens) for line in lines} or {DEFAULT_LINE}
    n_scored = max((len(packing.scored_positions(line)) for line in lines), default=1)

    def predict_bytes(token_budget: int) -> int:
        # Assume as many lines as the budget holds: the budget must not depend on their number.
        n_lines = max(len(lines), token_budget)
        if max_streams is None:
            return footprint.capture_bytes(shape, token_budget, max(line_lengths), n_lines)
        return footprint.sweep_bytes(
            shape, token_budget, line_lengths, n_lines, n_scored, max_streams
        )

    return footprint.largest_token_budget(available_bytes(model), predict_bytes)


def available_bytes(model: PreTrainedModel) -> int:
    """Bytes that a pass may take: half of the free memory of the model's fullest device.

    On a CPU, HOST_BYTES.
    """
    devices = {parameter.device for parameter in model.parameters()}
    cuda_devices = [device for device in devices if device.type == "cuda"]
    if not cuda_devices:
        return HOST_BYTES
    return min(torch.cuda.mem_get_info(device)[0] for device in cuda_devices) // 2

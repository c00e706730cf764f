"""Measures size, speed and memory of variants, as ratios to the base model in the same minutes.

Each repeat measures the base and the variant, which take turns to be first. A ratio is the
geometric mean over repeats of variant / base, so that a machine that slows down or speeds up does
so for both.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import weights_and_patches
from lamina.models.checkpoint import check_generation, stated_context
from lamina.models.sizes import count_cached_numbers, limit_cached_tokens
from lamina.models.structure import layers_of, text_config
from lamina.models.surgery import NoAttention
from lamina.options.benchmarks import Efficiency, Load

PREFILLS = 3
"""Passes over the prompt in a repeat. The fastest counts.

A pass takes milliseconds, and other processes can only slow it down.
"""


class Timing(NamedTuple):
    """One run of one model."""

    prefill: float
    """Seconds for the prompt."""
    tokens_per_second: float
    """Generated tokens of the whole batch per second."""
    working_bytes: int | None
    """Peak GPU memory during the run minus the memory in use before it; None on a CPU.

    Base and variants share weights, so the peak of one model alone is its own weights plus this.
    """


class Repeat(NamedTuple):
    """A run of the base model and a run of a variant, one right after the other."""

    base: Timing
    variant: Timing


def measure_efficiency(
    base: PreTrainedModel,
    variants: Iterable[tuple[dict[str, Any], PreTrainedModel]],
    options: Efficiency,
) -> list[dict[str, Any]]:
    """Rows of table `efficiency`, one per variant and load, each taken in turn with the base.

    A run takes `batch` sequences of `prompt` random tokens, and generates `generate` more tokens
    greedily; there are `repeats` pairs of such runs. A variant whose layers have the same shapes
    and types as an earlier variant's reuses its measurements, and column `timed` says so. Column
    `main` marks the rows of the first load.

    variants: Keys of a row, and the variant. It may be a generator, so that only one variant exists
        at a time. The base itself may be among them; its ratios then measure the noise.

    Raises LaminaError if prompt and generated tokens are more than the model's context.
    """
    model_context = stated_context(base.config.to_dict())
    model_name = str(base.config.name_or_path)
    loads = options.loads
    longest_prompt = max(load.prompt for load in loads)
    check_generation(longest_prompt, options.generate, model_context, model_name)
    prompts = {load: _draw_prompt(base, load) for load in loads}

    for prompt in prompts.values():
        _run(base, prompt, options.generate)  # warm-up of memory and kernels
    rows: list[dict[str, Any]] = []
    measured_by_cost: dict[Any, list[dict[str, Any]]] = {}
    for keys, variant in variants:
        cost = describe_cost(variant)
        if cost not in measured_by_cost:
            measured_by_cost[cost] = []
            for load, prompt in prompts.items():
                repeats = _repeat(base, variant, prompt, options)
                values = _summarise(base, variant, repeats)
                measured_by_cost[cost].append(
                    {
                        "timed": keys.get("timed"),
                        "main": load == loads[0],
                        **load._asdict(),
                        "generate": options.generate,
                        "repeats": options.repeats,
                        **values,
                    }
                )
        rows += [{**keys, **measured} for measured in measured_by_cost[cost]]
    return rows


def describe_cost(model: PreTrainedModel) -> tuple[Any, ...]:
    """What the cost of a variant depends on; equal for variants that cost the same.

    The order of layers does not count. The type of a layer does: full and sliding attention have
    the same shapes.
    """
    layers = layers_of(model)
    layer_types = getattr(text_config(model), "layer_types", None) or [None] * len(layers)
    counted_layers = Counter(
        (layer_type, _count_shapes(layer.parameters()))
        for layer_type, layer in zip(layer_types, layers, strict=True)
    )
    shapes = _count_shapes(weights_and_patches(model))
    return shapes, frozenset(counted_layers.items()), kv_bytes_per_token(model)


def _count_shapes(tensors: Iterable[torch.Tensor]) -> frozenset[tuple[torch.Size, int]]:
    return frozenset(Counter(tensor.shape for tensor in tensors).items())


def _draw_prompt(model: PreTrainedModel, load: Load) -> torch.Tensor:
    """Random token ids, (batch, prompt), on the device of the model."""
    generator = torch.Generator().manual_seed(0)
    shape = (load.batch, load.prompt)
    token_ids = torch.randint(text_config(model).vocab_size, shape, generator=generator)
    return token_ids.to(model.device)


def _repeat(
    base: PreTrainedModel, variant: PreTrainedModel, prompt: torch.Tensor, options: Efficiency
) -> list[Repeat]:
    """All repeats with one prompt, after a first run of the variant that is not timed."""
    _run(variant, prompt, options.generate)
    return [
        _run_both(base, variant, prompt, options.generate, base_first=index % 2 == 0)
        for index in range(options.repeats)
    ]


def measure_sizes(model: PreTrainedModel) -> dict[str, int]:
    """Parameters and their bytes, and key-value bytes per token and sequence.

    Patches are included, and tied weights count once.
    """
    tensors = weights_and_patches(model)
    return {
        "parameters": sum(tensor.numel() for tensor in tensors),
        "weights_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "kv_bytes_per_token": kv_bytes_per_token(model),
    }


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes of keys and values that one more token of one sequence adds to the cache.

    They are those of all layers with attention. It holds for sliding-window layers until their
    window is full. Convolutions, state spaces and linear attention keep no keys and values.
    """
    config = text_config(model)
    layers = layers_of(model)
    n_numbers = 0
    for layer, n_cached, most_tokens in zip(
        layers, count_cached_numbers(config), limit_cached_tokens(config, len(layers)), strict=True
    ):
        lost_attention = any(isinstance(module, NoAttention) for module in layer.children())
        if most_tokens and not lost_attention:
            n_numbers += n_cached
    return n_numbers * model.dtype.itemsize


def _run_both(
    base: PreTrainedModel,
    variant: PreTrainedModel,
    prompt: torch.Tensor,
    n_generated: int,
    base_first: bool,
) -> Repeat:
    if base_first:
        base_timing = _run(base, prompt, n_generated)
        variant_timing = _run(variant, prompt, n_generated)
    else:
        variant_timing = _run(variant, prompt, n_generated)
        base_timing = _run(base, prompt, n_generated)
    return Repeat(base_timing, variant_timing)


def _run(model: Any, prompt: torch.Tensor, n_generated: int) -> Timing:
    try:
        return _time(model, prompt, n_generated)
    except torch.cuda.OutOfMemoryError as error:
        # The batch is not reduced, because it is what is measured.
        raise LaminaError(
            f"benchmarks.efficiency: {len(prompt)} sequences of {prompt.shape[1]} + {n_generated} "
            f"tokens do not fit into the memory of {prompt.device}. Write a smaller batch or "
            "prompt."
        ) from error


@torch.inference_mode()
def _time(model: Any, prompt: torch.Tensor, n_generated: int) -> Timing:
    """Time the prompt, then greedy generation with the cache."""
    is_on_gpu = prompt.device.type == "cuda"
    bytes_before = 0
    if is_on_gpu:
        bytes_before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    options = {}
    if "logits_to_keep" in signature(model.forward).parameters:
        options["logits_to_keep"] = 1

    prefill = math.inf
    output: Any = None
    for _ in range(PREFILLS):
        output = None  # frees the cache of the pass before, or the peak has two
        start = _now(is_on_gpu)
        output = model(input_ids=prompt, use_cache=True, **options)
        token_ids = output.logits[:, -1:].argmax(-1)
        end_of_prompt = _now(is_on_gpu)
        prefill = min(prefill, end_of_prompt - start)

    # The last prefill has already produced the first generated token.
    for _ in range(n_generated - 1):
        output = model(input_ids=token_ids, past_key_values=output.past_key_values, use_cache=True)
        token_ids = output.logits[:, -1:].argmax(-1)
    tokens_per_second = math.nan
    if n_generated > 1:
        n_tokens = len(prompt) * (n_generated - 1)
        tokens_per_second = n_tokens / (_now(is_on_gpu) - end_of_prompt)

    working_bytes = None
    if is_on_gpu:
        working_bytes = torch.cuda.max_memory_allocated() - bytes_before
    return Timing(prefill, tokens_per_second, working_bytes)


def _now(is_on_gpu: bool) -> float:
    """The time in seconds after all queued work of the device is done."""
    if is_on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def _summarise(
    base: PreTrainedModel,
    variant: PreTrainedModel,
    repeats: Sequence[Repeat],
) -> dict[str, Any]:
    """The measured values of a row of table `efficiency`."""
    base_sizes = measure_sizes(base)
    variant_sizes = measure_sizes(variant)
    latency_ratio, latency_stderr = _mean_ratio(
        [repeat.variant.prefill / repeat.base.prefill for repeat in repeats]
    )
    speed_ratio, speed_stderr = _mean_ratio(
        [repeat.variant.tokens_per_second / repeat.base.tokens_per_second for repeat in repeats]
    )
    base_peak = _peak_bytes(base_sizes, [repeat.base for repeat in repeats])
    variant_peak = _peak_bytes(variant_sizes, [repeat.variant for repeat in repeats])
    peak_ratio = None
    if base_peak is not None and variant_peak is not None:
        peak_ratio = variant_peak / base_peak
    device = variant.device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": str(variant.dtype).removeprefix("torch."),
        **variant_sizes,
        **{f"{name}_ratio": variant_sizes[name] / base_sizes[name] for name in variant_sizes},
        "latency_ms": 1000 * statistics.median(repeat.variant.prefill for repeat in repeats),
        "latency_ratio": latency_ratio,
        "latency_ratio_stderr": latency_stderr,
        "tokens_per_second": statistics.median(
            repeat.variant.tokens_per_second for repeat in repeats
        ),
        "tokens_per_second_ratio": speed_ratio,
        "tokens_per_second_ratio_stderr": speed_stderr,
        "peak_memory_bytes": variant_peak,
        "peak_memory_ratio": peak_ratio,
    }


def _peak_bytes(model_sizes: Mapping[str, int], timings: Sequence[Timing]) -> int | None:
    """The largest peak of GPU memory that a model alone would have; None on a CPU."""
    working_bytes = [timing.working_bytes for timing in timings if timing.working_bytes is not None]
    return model_sizes["weights_bytes"] + max(working_bytes) if working_bytes else None


def _mean_ratio(ratios: Sequence[float]) -> tuple[float, float]:
    """Geometric mean of ratios and its standard error: mean × error of the mean logarithm."""
    logarithms = np.log(ratios)
    mean = float(np.exp(logarithms.mean()))
    return mean, mean * float(logarithms.std(ddof=1)) / len(logarithms) ** 0.5

"""Size, speed and memory of variants, as ratios to the base model measured in the same minutes.

Each repeat measures the base and the variant, and they take turns to be first. A ratio is the geometric mean over
repeats of variant / base, so that a machine that slows down or speeds up does so for both.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from lamina.config.benchmarks import Efficiency
from lamina.errors import LaminaError
from lamina.models.boundary import weights_and_patches
from lamina.models.checkpoint import check_generation, context
from lamina.models.structure import layers_of, text_config
from lamina.models.surgery import NoAttention, runs
from lamina.models.units import parse
from lamina.study.variant import Variant

# One prompt takes milliseconds, so a repeat takes the fastest of a few: whatever else ran can only have added time.
_PREFILLS = 3


class Timing(NamedTuple):
    """One repeat. Base and variants share weights: the peak of one model alone is its own weights plus `working`."""

    prefill: float  # seconds for the prompt
    tokens_per_second: float  # of generation, over the batch
    working: (
        int | None
    )  # peak of GPU memory during the repeat less the memory in use before it; None on a CPU


def one_per_cost(plans: Mapping[Variant, Mapping[str, Any] | None]) -> dict[Variant, int]:
    """The first variant of each cost, without its healing, and the number of its runs of removed units.

    The cost depends on how many layers lack what, the repair, and the number of runs, since a repair may work once in
    each run. It does not depend on which layers are removed, nor on a healing, which is merged. Only the models show
    that some repairs cost the same (`measure`). The unpruned model has no plan.
    """
    chosen: dict[tuple[Any, ...], tuple[Variant, int]] = {}
    for variant, plan in plans.items():
        units = plan["units"] if plan else []
        if plan and not units:
            continue
        n_runs = len(runs(units, 1 + max((parse(unit)[0] for unit in units), default=0)))
        per_run = None if variant.repair == "none" else n_runs
        bare = replace(variant, healing="none")
        chosen.setdefault((composition(units), variant.repair, per_run), (bare, n_runs))
    return dict(chosen.values())


def composition(units: Iterable[str]) -> frozenset[tuple[frozenset[str], int]]:
    """How many layers lack what, as column `composition` of the view `removal_order` says it.

    A layer that lacks attention and MLP leaves with its norms; two layers that lack one of them each keep theirs.
    """
    parts_of_layer: dict[int, set[str]] = {}
    for layer, part in map(parse, units):
        parts_of_layer.setdefault(layer, set()).add(part)
    return frozenset(Counter(map(frozenset, parts_of_layer.values())).items())


def measure(
    base: PreTrainedModel,
    variants: Iterable[tuple[dict[str, Any], PreTrainedModel]],
    options: Efficiency,
) -> list[dict[str, Any]]:
    """Rows of table `efficiency`, one per (keys, variant), each taken in turn with the base.

    `batch` sequences of `prompt` random tokens, then `generate` tokens more, greedily; `repeats` pairs of such runs.
    `variants` may be a generator, so that only one variant exists at a time. The base itself may be among them; its
    ratios then measure the noise. A variant whose weights have the shapes of an earlier variant takes over the
    measurements of the earlier one, and its `timed` says so.

    Raises LaminaError if prompt and generated tokens are more than the model's context.
    """
    check_generation(
        options.prompt,
        options.generate,
        context(base.config.to_dict()),
        str(base.config.name_or_path),
    )
    size = (options.batch, options.prompt)
    prompt = torch.randint(
        text_config(base).vocab_size, size, generator=torch.Generator().manual_seed(0)
    )
    run = partial(_run, prompt=prompt.to(base.device), generate=options.generate)
    run(base)  # the first passes pay for memory and kernels
    rows = []
    measured: dict[Any, dict[str, Any]] = {}
    for keys, variant in variants:
        shapes = Counter(tensor.shape for tensor in weights_and_patches(variant))
        cost = (frozenset(shapes.items()), kv_bytes_per_token(variant))
        if cost not in measured:
            run(variant)
            pairs = []
            for number in range(options.repeats):
                # Each goes first as often as the other.
                first, second = (base, variant) if number % 2 == 0 else (variant, base)
                timings = run(first), run(second)
                pairs.append(timings if first is base else timings[::-1])
            measured[cost] = {"timed": keys.get("timed"), **_row(base, variant, pairs, options)}
        rows.append({**keys, **measured[cost]})
    return rows


def sizes(model: PreTrainedModel) -> dict[str, int]:
    """Parameters and their bytes (patches included, tied weights once), and key-value bytes per token and sequence."""
    tensors = weights_and_patches(model)
    return {
        "parameters": sum(t.numel() for t in tensors),
        "weights_bytes": sum(t.numel() * t.element_size() for t in tensors),
        "kv_bytes_per_token": kv_bytes_per_token(model),
    }


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes of keys and values that one more token of one sequence adds to the cache, over layers with attention.

    The number comes from the configuration. It holds for sliding-window layers until their window is full.
    """
    config = text_config(model)
    heads = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        keys = 1 if config.multi_query else heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    attending = sum(
        not any(isinstance(m, NoAttention) for m in layer.children()) for layer in layers_of(model)
    )
    return 2 * attending * keys * width * torch.empty((), dtype=model.dtype).element_size()


def _run(model: Any, prompt: torch.Tensor, generate: int) -> Timing:
    try:
        return _timed(model, prompt, generate)
    except torch.cuda.OutOfMemoryError as error:
        # Never in halves: what is measured is this batch.
        raise LaminaError(
            f"benchmarks.efficiency: {len(prompt)} sequences of {prompt.shape[1]} + {generate} tokens do not fit into "
            f"the memory of {prompt.device}. Write a smaller batch or prompt."
        ) from error


@torch.inference_mode()
def _timed(model: Any, prompt: torch.Tensor, generate: int) -> Timing:
    last_only = (
        {"logits_to_keep": 1} if "logits_to_keep" in signature(model.forward).parameters else {}
    )
    on_gpu, prefill = prompt.device.type == "cuda", math.inf
    held = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def now() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(_PREFILLS):
        start = now()
        output = model(input_ids=prompt, use_cache=True, **last_only)
        token = output.logits[:, -1:].argmax(-1)
        middle = now()
        prefill = min(prefill, middle - start)
    for _ in range(generate - 1):
        output = model(input_ids=token, past_key_values=output.past_key_values, use_cache=True)
        token = output.logits[:, -1:].argmax(-1)
    speed = len(prompt) * (generate - 1) / (now() - middle) if generate > 1 else float("nan")
    return Timing(prefill, speed, torch.cuda.max_memory_allocated() - held if on_gpu else None)


def _row(
    base: PreTrainedModel,
    variant: PreTrainedModel,
    pairs: list[tuple[Timing, Timing]],
    options: Efficiency,
) -> dict[str, Any]:
    ours, theirs = sizes(variant), sizes(base)
    latency, latency_error = _mean_ratio([(v.prefill, b.prefill) for b, v in pairs])
    speed, speed_error = _mean_ratio([(v.tokens_per_second, b.tokens_per_second) for b, v in pairs])
    peak = _peak(ours, [v.working for _, v in pairs])
    base_peak = _peak(theirs, [b.working for b, _ in pairs])
    on = variant.device
    return {
        "device": torch.cuda.get_device_name(on) if on.type == "cuda" else on.type,
        "dtype": str(variant.dtype).removeprefix("torch."),
        **options.model_dump(),
        **ours,
        **{f"{name}_ratio": ours[name] / theirs[name] for name in ours},
        "latency_ms": 1000 * statistics.median(v.prefill for _, v in pairs),
        "latency_ratio": latency,
        "latency_ratio_stderr": latency_error,
        "tokens_per_second": statistics.median(v.tokens_per_second for _, v in pairs),
        "tokens_per_second_ratio": speed,
        "tokens_per_second_ratio_stderr": speed_error,
        "peak_memory_bytes": peak,
        "peak_memory_ratio": None if peak is None or base_peak is None else peak / base_peak,
    }


def _peak(size: dict[str, int], working: list[int | None]) -> int | None:
    known = [value for value in working if value is not None]
    return size["weights_bytes"] + max(known) if known else None


def _mean_ratio(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Geometric mean of the ratios, and its standard error: the mean times the error of the mean logarithm."""
    logarithms = [math.log(ours / theirs) for ours, theirs in pairs]
    mean = math.exp(statistics.fmean(logarithms))
    return mean, mean * statistics.stdev(logarithms) / len(logarithms) ** 0.5

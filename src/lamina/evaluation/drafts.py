"""Variants as drafts of their own base: how often a drafted token is accepted, and whether decoding gets faster.

Every number is a ratio of sums over prompts (accepted tokens / tokens, tokens / rounds, seconds / seconds), and its
standard error treats prompts as clusters. Each prompt is written with the base alone and with the draft in turn.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.config.benchmarks import Drafts
from lamina.data.text import encode
from lamina.errors import LaminaError
from lamina.evaluation import speculation
from lamina.evaluation.efficiency import kv_bytes_per_token
from lamina.evaluation.speculation import Decoding, Writer, overlap, written
from lamina.models.boundary import assert_finite
from lamina.models.context import check_fits, context

# A pass takes milliseconds, so it is the fastest of a few: whatever else ran can only have added time.
_PASSES = 5


def prompts(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, options: Drafts) -> list[list[int]]:
    """The first `prompt` tokens of the first `prompts` documents that have more tokens than that.

    Raises
    ------
    LaminaError
        If fewer than two documents are long enough.
    """
    encoded = (encode(tokenizer, text) for text in documents)
    starts = [tokens[: options.prompt] for tokens in encoded if len(tokens) > options.prompt][: options.prompts]
    if len(starts) < 2:
        raise LaminaError(
            f"benchmarks.drafts.prompt: {len(starts)} of the {len(documents)} documents of '{options.text}' are longer "
            f"than {options.prompt} tokens, and an interval needs 2. Write a smaller prompt, or name a longer text."
        )
    return starts


def measure(
    base: PreTrainedModel,
    variants: Iterable[tuple[dict[str, Any], PreTrainedModel]],
    asked: Sequence[Sequence[int]],
    options: Drafts,
) -> list[dict[str, Any]]:
    """Two rows of table `drafts` per (keys, variant): one for greedy decoding, one for sampled tokens.

    `variants` may be a generator, so that only one exists at a time. Variants share the base's weights.

    Raises
    ------
    LaminaError
        If prompt, tokens and draft are more than the model's context, or a variant gives NaN.
    """
    limit, name = context(base.config.to_dict()), str(base.config.name_or_path)
    check_fits("benchmarks.drafts (prompt + tokens + draft)", options.longest, limit, name)
    ends = base.generation_config.eos_token_id
    final = frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
    rows = []
    for keys, variant in variants:
        held = {tensor.data_ptr() for tensor in _tensors(base)}
        own = {tensor.data_ptr(): tensor for tensor in _tensors(variant) if tensor.data_ptr() not in held}
        common = {
            **keys,
            "device": torch.cuda.get_device_name(base.device) if base.device.type == "cuda" else base.device.type,
            "dtype": str(base.dtype).removeprefix("torch."),
            "prompt": options.prompt,
            "draft": options.draft,
            "n_samples": len(asked),
            "extra_bytes": sum(tensor.numel() * tensor.element_size() for tensor in own.values()),
            "kv_bytes_per_token": kv_bytes_per_token(variant),
            **_costs(base, variant, asked, options.draft),
        }
        for temperature in (None, options.temperature):
            how = Decoding(options.tokens, temperature, final, options.draft)
            rows.append(common | _decoded(base, variant, asked, how, options.seed))
    return rows


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float | None, float | None]:
    """r = ΣA/ΣB over prompts and its standard error, var(r) = K/(K-1) Σ(A - r B)² / (ΣB)²; None where undefined."""
    total, count = math.fsum(below), len(below)
    if total <= 0:
        return None, None
    value = math.fsum(above) / total
    spread = math.fsum((a - value * b) ** 2 for a, b in zip(above, below, strict=True))
    return value, math.sqrt(count / (count - 1) * spread) / total if count > 1 else None


def expected_tokens(acceptance: float, draft: int) -> float:
    """Tokens of a round, (1 - α^(g+1)) / (1 - α), if acceptance α is the same for all [arXiv 2211.17192, eq. 1]."""
    return float(sum(acceptance**power for power in range(draft + 1)))


def break_even(draft: int, cost: float, verification: float) -> float | None:
    """The acceptance α at which a round gives as many tokens as it costs, g c + v_g; None if there is no such α."""
    price = draft * cost + verification
    if price > draft + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, draft) < price else (low, middle)
    return high if price > 1 else 0.0


def _decoded(
    base: PreTrainedModel, variant: PreTrainedModel, asked: Sequence[Sequence[int]], how: Decoding, seed: int
) -> dict[str, Any]:
    """The columns of a draft for one way to choose tokens."""
    pairs, accepted = [], []
    for draft in (None, variant):
        written(base, asked[0], how, seed, draft)  # the first passes pay for memory and kernels
    for number, prompt in enumerate(asked):
        pair = {}
        # Each goes first as often as the other.
        for draft in (None, variant) if number % 2 == 0 else (variant, None):
            pair[draft is not None] = written(base, prompt, how, seed + number, draft)
        pairs.append((pair[False], pair[True]))
        text = [*prompt, *pair[False].tokens]
        # The first token is the base's own.
        each = overlap(base, variant, text, len(prompt) + 1, how.temperature)
        assert_finite(each, "a draft", "the measurement of drafts")
        accepted.append(each.double().cpu())
    acceptance, acceptance_error = ratio([float(each.sum()) for each in accepted], [len(each) for each in accepted])
    tokens, tokens_error = ratio([helped.proposed for _, helped in pairs], [helped.rounds for _, helped in pairs])
    # Sampled texts differ in length, so seconds are of a token behind the first.
    timed = [pair for pair in pairs if min(len(each.tokens) for each in pair) > 1]
    alone, both = ([pair[side].seconds / (len(pair[side].tokens) - 1) for pair in timed] for side in (0, 1))
    speed, speed_error = ratio(alone, both)
    greedy = how.temperature is None
    return {
        "decoding": "greedy" if greedy else "sampled",
        "temperature": how.temperature,
        "tokens": sum(len(plain.tokens) for plain, _ in pairs),
        "same": sum(plain.tokens == helped.tokens for plain, helped in pairs) if greedy else None,
        "acceptance": acceptance,
        "acceptance_stderr": acceptance_error,
        "tokens_per_round": tokens,
        "tokens_per_round_stderr": tokens_error,
        "tokens_per_round_expected": None if acceptance is None else expected_tokens(acceptance, how.draft),
        "speedup": speed,
        "speedup_stderr": speed_error,
    }


def _costs(
    base: PreTrainedModel, variant: PreTrainedModel, asked: Sequence[Sequence[int]], draft: int
) -> dict[str, Any]:
    """c and v_g, measured behind each prompt. The three passes take turns."""
    seconds: list[list[float]] = [[], [], []]
    for prompt in asked:
        readers = [(Writer(base), 1), (Writer(variant), 1), (Writer(base), draft + 1)]
        fastest = [math.inf] * 3
        for _ in range(_PASSES):
            for place, (writer, count) in enumerate(readers):
                fastest[place] = min(fastest[place], _timed(writer, prompt, count))
        for trials, least in zip(seconds, fastest, strict=True):
            trials.append(least)
    cost, cost_error = ratio(seconds[1], seconds[0])
    verification, verification_error = ratio(seconds[2], seconds[0])
    assert cost is not None and verification is not None
    return {
        "cost": cost,
        "cost_stderr": cost_error,
        "verification": verification,
        "verification_stderr": verification_error,
        "break_even": break_even(draft, cost, verification),
    }


@torch.inference_mode()
def _timed(writer: Writer, prompt: Sequence[int], count: int) -> float:
    """Seconds of a pass over `count` tokens behind a prompt."""
    wait: Callable[[], object] = torch.cuda.synchronize if writer.model.device.type == "cuda" else lambda: None
    if not writer.held:
        writer.read(prompt, 1)
    wait()
    start = speculation.clock()
    writer.read([*prompt, *[prompt[-1]] * count], count)
    wait()
    seconds = speculation.clock() - start
    writer.keep(len(prompt))
    return seconds


def _tensors(model: PreTrainedModel) -> list[torch.Tensor]:
    """Parameters and the buffers of patches, which are saved too."""
    return [*model.parameters(), *(buffer for name, buffer in model.named_buffers() if ".patch_" in name)]

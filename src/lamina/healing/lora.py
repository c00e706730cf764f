"""Healing by LoRA: low-rank updates of the MLP projections, trained on the calibration's own samples.

Settings follow arXiv 2605.14075, appendix E.7, except that the epoch is picked on a validation split cut from the
training samples, epoch 0 (no training) included, and never on test data. What is validated is what is benchmarked: the
update merged into the weights, in their dtype.

`learning_rate` rises linearly over `warmup_steps` (at most a tenth of all steps) and falls as a cosine to 0 at the last
step. `max_steps` bounds the optimiser steps of all epochs together.
"""

import json
import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from lamina.config.healings import Lora
from lamina.data.calibrations import Sample
from lamina.errors import LaminaError
from lamina.models.structure import family_of, projection_paths
from lamina.models.variant import own
from lamina.streams.batches import by_length, padded

VALIDATION_SHARE = 0.15


def heal(variant: PreTrainedModel, samples: Sequence[Sample], options: Lora) -> tuple[PeftModel, list[dict[str, Any]]]:
    """Train a LoRA adapter on a materialised variant; its own weights stay as they are.

    Returns the PEFT model holding the best epoch's adapter, and one row per optimiser step (plus one for epoch 0) for
    table `training`: validation_loss stands at the last step of each epoch, `chosen` marks the epoch that was kept.

    The loss of multiple-choice and generated samples is on the gold continuation, that of texts on all tokens.

    Raises
    ------
    LaminaError
        If there are too few samples to cut a validation split, or the loss is not a number.
    """
    training, validation = _split(samples, options.seed)
    torch.manual_seed(options.seed)
    # PEFT freezes the tensors it wraps, and those are shared with the base model.
    flags = [parameter.requires_grad for parameter in variant.parameters()]
    parameters = list(variant.parameters())
    adapted = get_peft_model(variant, lora_config(variant, options))
    try:
        rows, best = _train(adapted, training, validation, options)
    finally:
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(best[name])
    return adapted.eval(), rows


def lora_config(model: PreTrainedModel, options: Lora) -> LoraConfig:
    """PEFT's description of the adapter: every MLP projection the variant still has, named in full."""
    return LoraConfig(
        r=options.rank,
        # Typed as int, used as the number it is.
        lora_alpha=cast(int, options.alpha),
        lora_dropout=options.dropout,
        target_modules=projection_paths(model),
        fan_in_fan_out=family_of(model).transposed,
        bias="none",
        task_type="CAUSAL_LM",
    )


def save(adapted: PeftModel, folder: str | Path) -> None:
    """Write adapter_model.safetensors and adapter_config.json, readable by PEFT, with no path of this machine."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in get_peft_model_state_dict(adapted).items()}
    config: dict[str, Any] = adapted.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": None, "inference_mode": True}
    config["target_modules"] = sorted(config["target_modules"])
    _write(Path(folder), state, {key: value for key, value in config.items() if not isinstance(value, set)})


def save_empty(folder: str | Path) -> None:
    """Write the files of an adapter that does not exist, because its plan was refused."""
    _write(Path(folder), {}, {"peft_type": "LORA", "target_modules": [], "base_model_name_or_path": None})


def _write(folder: Path, state: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        save_file(dict(state), temporary / "adapter_model.safetensors", metadata={"format": "pt"})
        text = json.dumps(config, indent=2, sort_keys=True, default=str)
        (temporary / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            (temporary / name).replace(folder / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _split(samples: Sequence[Sample], seed: int) -> tuple[list[Sample], list[Sample]]:
    if len(samples) < 4:
        raise LaminaError(
            f"healing needs at least 4 calibration samples, to train on some and pick the epoch on others; there are "
            f"{len(samples)}. Raise the calibration's limit."
        )
    held = max(1, round(len(samples) * VALIDATION_SHARE))
    chosen = set(random.Random(seed).sample(range(len(samples)), held))
    training = [sample for number, sample in enumerate(samples) if number not in chosen]
    return training, [samples[number] for number in sorted(chosen)]


def _train(
    adapted: PeftModel, training: Sequence[Sample], validation: Sequence[Sample], options: Lora
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    weights = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    optimiser = torch.optim.AdamW(weights.values(), lr=options.learning_rate, weight_decay=0.0)
    per_epoch = math.ceil(len(training) / options.batch)
    total = per_epoch * options.epochs
    total = min(total, options.max_steps) if options.max_steps else total
    warmup = min(options.warmup_steps, max(1, total // 10))
    order, memory = random.Random(options.seed), _positions(adapted)
    with merged(adapted):
        first = _validate(adapted, validation, memory)
    rows: list[dict[str, Any]] = [
        {"step": 0, "epoch": 0, "validation_loss": first, "learning_rate": 0.0, "tokens": 0, "chosen": True}
    ]
    best_loss, best = first, {name: weight.detach().clone() for name, weight in weights.items()}
    step, tokens = 0, 0
    for epoch in range(1, options.epochs + 1):
        adapted.train()
        for batch in _shuffled(training, options.batch, order):
            if step == total:
                break
            step += 1
            rate = options.learning_rate * _schedule(step, warmup, total)
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss, count = _backward(adapted, batch, memory)
            if math.isnan(loss):
                raise LaminaError(
                    f"{adapted.config.model_type} gives NaN in healing, step {step}. Lower the learning_rate, or write "
                    "dtype: float32 (or bfloat16) for this model."
                )
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            tokens += count
            rows.append(
                {
                    "step": step,
                    "epoch": epoch,
                    "loss": loss,
                    "learning_rate": rate,
                    "tokens": tokens,
                    "chosen": False,
                }
            )
        if rows[-1]["epoch"] != epoch:
            break
        with merged(adapted):
            rows[-1]["validation_loss"] = _validate(adapted, validation, memory)
        if rows[-1]["validation_loss"] < best_loss:
            best_loss = rows[-1]["validation_loss"]
            best = {name: weight.detach().clone() for name, weight in weights.items()}
            for row in rows:
                row["chosen"] = row is rows[-1]
    return rows, best


def _positions(model: PeftModel) -> int:
    """Token positions, padding included, whose activations fit into half of the free memory (2 GiB on a CPU)."""
    config = model.config.get_text_config(decoder=True)
    free = torch.cuda.mem_get_info(model.device)[0] // 2 if model.device.type == "cuda" else 2 << 30
    # About 40 numbers a channel and layer are kept for the backward pass, and a few per vocabulary entry.
    numbers = 40 * config.hidden_size * config.num_hidden_layers + 6 * config.vocab_size
    return int(free // (4 * numbers))


def _backward(model: PeftModel, batch: Sequence[Sample], positions: int) -> tuple[float, int]:
    """Add the gradient of the batch's mean loss per token, in as many parts as memory asks for; loss and tokens."""
    encoded = [_tokens(sample) for sample in batch]
    count = sum(len(ids) - first for ids, first in encoded)
    total = 0.0
    for part in by_length([len(ids) for ids, _ in encoded], positions):
        # In the order of the batch, which in one part is then the batch itself.
        loss, _ = _loss(model, [batch[number] for number in sorted(part)])
        (loss / count).backward()
        total += float(loss.detach())
    return total / count, count


def _schedule(step: int, warmup: int, total: int) -> float:
    """Factor of the learning rate at `step` (1 … total): linear warm-up, then a cosine to 0."""
    if step <= warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def _shuffled(samples: Sequence[Sample], size: int, order: random.Random) -> Iterator[list[Sample]]:
    """Batches of samples of similar length, the batches in random order: little padding, no curriculum."""
    shuffled = list(samples)
    order.shuffle(shuffled)
    shuffled.sort(key=lambda sample: len(_tokens(sample)[0]))
    batches = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    order.shuffle(batches)
    yield from batches


def _tokens(sample: Sample) -> tuple[list[int], int]:
    """Token ids of context and gold continuation, and the position of the first token the loss counts."""
    row = sample.rows[sample.gold]
    ids = [*row.context, *row.continuation]
    return ids, 1 if sample.kind == "text" else max(1, len(row.context))


def _loss(model: PreTrainedModel | PeftModel, batch: Sequence[Sample]) -> tuple[torch.Tensor, int]:
    """Summed negative log-likelihood of the scored tokens of a batch, and their number."""
    encoded = [_tokens(sample) for sample in batch]
    inputs, real = padded([ids for ids, _ in encoded], model.device)
    first = torch.tensor([[start] for _, start in encoded], device=model.device)
    scored = (real & (torch.arange(real.shape[1], device=model.device) >= first))[:, 1:]
    logits = model(input_ids=inputs, attention_mask=real.long(), use_cache=False).logits
    loss = functional.cross_entropy(logits[:, :-1][scored].float(), inputs[:, 1:][scored], reduction="sum")
    return loss, int(scored.sum())


@contextmanager
def merged(model: PeftModel) -> Iterator[None]:
    """While open, each adapted projection computes as in a saved variant: with its update merged into its weight.

    One copy of one weight exists at a time, made again in every pass, so the weights that are shared with the base
    model stay as they are and memory stays bounded.
    """
    weights: dict[nn.Module, nn.Parameter] = {}

    def merge(module: Any, args: Any) -> None:
        base = module.get_base_layer()
        weights[module] = base.weight
        own(base, "weight")
        module.merge()

    def restore(module: Any, args: Any, output: Any) -> None:
        module.get_base_layer().weight = weights.pop(module)
        module.merged_adapters.clear()

    handles = []
    for module in model.modules():
        if isinstance(module, LoraLayer):
            layer = cast(nn.Module, module)
            handles += [layer.register_forward_pre_hook(merge), layer.register_forward_hook(restore)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _validate(model: PreTrainedModel | PeftModel, samples: Sequence[Sample], positions: int) -> float:
    """Mean negative log-likelihood per scored token, in nats, in batches of at most so many positions."""
    model.eval()
    total, count = 0.0, 0
    for group in by_length([len(_tokens(sample)[0]) for sample in samples], positions):
        loss, tokens = _loss(model, [samples[number] for number in group])
        total, count = total + float(loss), count + tokens
    if math.isnan(total):
        raise LaminaError(
            f"{model.config.model_type} gives NaN during the validation of a healing; use dtype: float32."
        )
    return total / count

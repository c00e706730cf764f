"""Training of the embedded reference model on the microworld: a tokenizer, a small Llama, one loop.

Everything is read from ``config/reference.yaml``. An interrupted training resumes from ``<out>/checkpoint``. Rows are
single documents padded on the right, so causal attention needs no mask; rows of similar length share a forward pass.
The loss weighs answers fully and prompts little: prompts are mostly random, and would use up the model's capacity.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from microworld import data
from microworld.tasks import CHOICE_TASKS, GENERATED_TASKS, make_world

Settings = dict[str, Any]
PAD, BOS, EOS, UNK = range(4)


def build_tokenizer(seed: int, longest: int) -> PreTrainedTokenizerFast:
    """Word-level tokenizer: a token per blank-separated word, digit or sign, so a choice never merges with a query."""
    words = data.vocabulary(seed)
    backend = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def build_model(shape: Settings, vocabulary_size: int) -> LlamaForCausalLM:
    """A freshly initialised Llama. Linear maps start at 1/sqrt(fan in), those that write to the residual stream smaller
    by sqrt(2L), and the input embedding at ``embedding_scale``: with the usual tiny start most layers stay idle."""
    shape = dict(shape)
    scale = shape.pop("embedding_scale")
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        dtype="float32",
        **shape,
    )
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if "embed_tokens" in name:
            torch.nn.init.normal_(weight, std=scale)
        elif weight.ndim == 2:
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            shrink = math.sqrt(2 * config.num_hidden_layers) if writes else 1.0
            torch.nn.init.normal_(weight, std=1 / (math.sqrt(weight.shape[1]) * shrink))
    return model


def encode_rows(
    rows: list[list[data.Piece]], index: dict[str, int], prompt_weight: float
) -> list[tuple[list[int], list[float]]]:
    """Token ids and loss weights (0 where nothing is learnt) of every row, with an end token after each."""
    encoded = []
    for row in rows:
        ids: list[int] = []
        weights: list[float] = []
        for text, is_answer in row:
            words = text.split()
            ids += [index[word] for word in words]
            weights += [1.0 if is_answer else prompt_weight] * len(words)
        encoded.append(([*ids, EOS], [*weights, 1.0]))
    return encoded


def chunks_of(
    encoded: list[tuple[list[int], list[float]]], buckets: list[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows grouped by length, one group per bucket (the longest length in it), padded on the right.

    Each group is ``(ids, weights)`` of shape ``(rows, length)``; padding has weight 0.
    """
    groups: dict[int, list[tuple[list[int], list[float]]]] = {}
    for row in encoded:
        bucket = next((bucket for bucket in buckets if len(row[0]) <= bucket), len(row[0]))
        groups.setdefault(bucket, []).append(row)
    chunks = []
    for _, group in sorted(groups.items()):
        length = max(len(ids) for ids, _ in group)
        ids = torch.tensor([row + [PAD] * (length - len(row)) for row, _ in group])
        weights = torch.tensor([row + [0.0] * (length - len(row)) for _, row in group])
        chunks.append((ids, weights))
    return chunks


def chunk_loss(model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of next-token losses (nats) of a chunk ``(rows, length)``; the head sees weighted positions only."""
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = weights[:, 1:] > 0
    losses = functional.cross_entropy(
        model.lm_head(hidden[wanted]), ids[:, 1:][wanted], reduction="none"
    )
    return (losses * weights[:, 1:][wanted]).sum()


def learning_rate(progress: float, training: Settings) -> float:
    """Linear warm-up, then a cosine from ``learning_rate`` to ``final_learning_rate``; ``progress`` in [0, 1]."""
    if progress < training["warmup"]:
        return float(training["learning_rate"] * progress / training["warmup"])
    angle = math.pi * (progress - training["warmup"]) / (1 - training["warmup"])
    low, high = training["final_learning_rate"], training["learning_rate"]
    return float(low + (high - low) * (1 + math.cos(angle)) / 2)


@torch.no_grad()
def accuracy(
    model: LlamaForCausalLM, index: dict[str, int], task: str, documents: list[data.Document]
) -> float:
    """Share of documents answered rightly: the gold choice, or (generated) every answer token, is likeliest."""
    rows = []
    for document in documents:
        answers = document.get("choices", [document.get("answer")])
        rows += [[(document["query"], False), (answer, True)] for answer in answers]
    encoded = encode_rows(rows, index, 0.0)
    length = max(len(ids) for ids, _ in encoded)
    ids = torch.tensor([row + [PAD] * (length - len(row)) for row, _ in encoded])
    wanted = torch.tensor([row + [0.0] * (length - len(row)) for _, row in encoded])[:, 1:] > 0
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    targets = ids[:, 1:]
    if task in GENERATED_TASKS:
        right = (logits.argmax(-1) == targets) | ~wanted
        return right.all(-1).float().mean().item()
    wanted &= targets != EOS  # the end of a document is no part of a choice
    picked = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    scores = iter((picked * wanted).sum(-1).tolist())
    right = 0
    for document in documents:
        sums = [next(scores) for _ in document["choices"]]
        right += sums.index(max(sums)) == document["gold"]
    return right / len(documents)


def validate(
    model: LlamaForCausalLM, index: dict[str, int], seed: int, count: int
) -> dict[str, float]:
    """Accuracy per task on ``count`` validation documents each."""
    tasks = (*CHOICE_TASKS, *GENERATED_TASKS)
    return {
        task: accuracy(model, index, task, data.documents(task, "validation", count, seed))
        for task in tasks
    }


def build_optimisers(model: LlamaForCausalLM, training: Settings) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices; AdamW for embeddings, head and norm gains.

    Muon's updates are scaled to AdamW's size, so both follow one learning rate.
    """
    parameters = dict(model.named_parameters())
    hidden = [
        weight for name, weight in parameters.items() if weight.ndim == 2 and "layers" in name
    ]
    others = [
        weight for name, weight in parameters.items() if weight.ndim != 2 or "layers" not in name
    ]
    decay = training["weight_decay"]
    return [
        torch.optim.Muon(
            hidden,
            weight_decay=decay,
            momentum=training["momentum"],
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(others, weight_decay=0.0, betas=tuple(training["betas"]), fused=True),
    ]


def save_checkpoint(
    folder: Path, model: LlamaForCausalLM, optimisers: list[torch.optim.Optimizer], state: Settings
) -> None:
    """Weights, optimiser moments and progress, as safetensors; complete before it replaces the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    for which, optimiser in enumerate(optimisers):
        for number, moments in optimiser.state_dict()["state"].items():
            tensors |= {
                f"optimiser.{which}.{number}.{name}": tensor for name, tensor in moments.items()
            }
    temporary = folder / "state.tmp"
    save_file(tensors, temporary, metadata={"state": json.dumps(state)})
    temporary.replace(folder / "state.safetensors")


def load_checkpoint(
    folder: Path, model: LlamaForCausalLM, optimisers: list[torch.optim.Optimizer]
) -> Settings | None:
    """Restore what ``save_checkpoint`` wrote; None if there is nothing to resume."""
    path = folder / "state.safetensors"
    if not path.exists():
        return None
    with safe_open(path, "pt") as file:
        state: Settings = json.loads(file.metadata()["state"])
    tensors = load_file(path)
    model.load_state_dict(
        {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    )
    for which, optimiser in enumerate(optimisers):
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith(f"optimiser.{which}."):
                number, part = name.split(".")[2:]
                moments.setdefault(int(number), {})[part] = tensor
        optimiser.load_state_dict(
            {"state": moments, "param_groups": optimiser.state_dict()["param_groups"]}
        )
    return state


def save_model(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write what `from_pretrained` reads."""
    model.generation_config = GenerationConfig(
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, do_sample=False
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(
    settings: Settings, out: Path, log: Callable[[str], None] = print, start: Path | None = None
) -> None:
    """Train the reference model and save it, with its tokenizer and a training record, to ``out``.

    The model after each step in ``keep`` is saved in ``out/checkpoints/stepN``, for studies of its training. With
    ``start``, the folder of a trained model, training goes on from its weights.
    """
    training, seed = settings["training"], settings["seed"]
    torch.manual_seed(seed)
    world = make_world(seed)
    longest = settings["model"]["max_position_embeddings"]
    tokenizer = build_tokenizer(seed, longest)
    index = {word: number for number, word in enumerate(data.vocabulary(seed))}
    model = build_model(settings["model"], len(index))
    if start:
        model.load_state_dict(load_file(start / "model.safetensors"))
    optimisers = build_optimisers(model, training)
    fresh: Settings = {"step": 0, "tokens": 0, "seconds": 0.0, "settings": settings}
    state = load_checkpoint(out / "checkpoint", model, optimisers) or fresh
    if state["settings"] != settings:
        raise ValueError(
            f"{out / 'checkpoint'} holds a training with other settings: remove it, or restore the settings"
        )
    started = time.monotonic() - state["seconds"]
    log(
        f"{sum(weight.numel() for weight in model.parameters())} parameters, {len(index)} words, step {state['step']}"
    )
    while state["tokens"] < training["tokens"]:
        progress = state["tokens"] / training["tokens"]
        rise = min(1.0, progress / training["curriculum"]) if training["curriculum"] else 1.0
        level = training["first_level"] + (1 - training["first_level"]) * rise
        # a step's rows depend on the seed and the step alone: a resumed training sees what an uninterrupted one would
        rng = random.Random(f"train {seed} {state['step']}")
        rows = data.training_rows(
            world, rng, settings["mixture"], level, training["tokens_per_step"]
        )
        encoded = encode_rows(rows, index, training["prompt_weight"])
        chunks = chunks_of(encoded, training["buckets"])
        weight = sum(weights[:, 1:].sum().item() for _, weights in chunks)
        total = 0.0
        for ids, weights in chunks:
            loss = chunk_loss(model, ids, weights) / weight
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training["clip"])
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(progress, training)
            optimiser.step()
        model.zero_grad()
        state["step"] += 1
        state["tokens"] += sum(len(ids) for ids, _ in encoded)
        state["seconds"] = time.monotonic() - started
        if state["step"] % training["validate_every"] == 0:
            scores = validate(model, index, seed, training["validate_documents"])
            shown = " ".join(f"{task} {score:.2f}" for task, score in scores.items())
            speed = state["tokens"] / state["seconds"]
            log(
                f"step {state['step']} tokens {state['tokens']} loss {total:.3f} {speed:.0f}/s | {shown}"
            )
        if state["step"] % training["checkpoint_every"] == 0:
            save_checkpoint(out / "checkpoint", model, optimisers, state)
        if state["step"] in training.get("keep", []):
            save_model(out / "checkpoints" / f"step{state['step']}", model, tokenizer)
    scores = validate(model, index, seed, data.SIZES["validation"])
    record = {
        "tokens": state["tokens"],
        "steps": state["step"],
        "seconds": round(time.monotonic() - started),
        "validation_accuracy": scores,
        "settings": settings,
    }
    save_model(out, model, tokenizer)
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    log(f"saved {out}: {record['tokens']} tokens, {record['seconds']} s, {scores}")

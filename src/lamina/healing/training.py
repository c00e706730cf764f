"""The loop of a healing: batches, steps, validation, and continuation after it was killed.

The epoch is chosen on validation documents, which are split from the given ones, and never on test data. Epoch 0 (no
training) may be chosen too. `learning_rate` rises linearly over `warmup_steps` (at most a tenth of all steps) and falls
as a cosine to 0 at the last step. `max_steps` bounds the optimiser steps of all epochs together.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from lamina.data.calibrations import Sample
from lamina.data.splitting import held_out
from lamina.engine.batches import by_length, fitting, halved, in_two
from lamina.engine.footprint import Shape, stepped, trained
from lamina.engine.memory import room
from lamina.errors import LaminaError
from lamina.healing.lora import Lora
from lamina.healing.objectives import Objective, tokens
from lamina.models.workload import done
from lamina.store.unfinished import Progress

VALIDATION_SHARE = 0.15
SAVE_STEPS = 100  # steps between two records of the progress, beside one after each epoch

Weights = Mapping[str, nn.Parameter]


class Source(NamedTuple):
    """Samples of one calibration; each of their scored tokens counts `weight` times."""

    samples: Sequence[Sample]
    weight: float = 1.0


class Step(NamedTuple):
    """One optimiser step: its batch, as one group of samples per source, and whether it is the last of its epoch."""

    epoch: int
    groups: list[list[Sample]]
    last: bool


def split(sources: Sequence[Source], seed: int) -> tuple[list[Source], list[Source]]:
    """The samples for training and for validation, drawn by document over all sources together.

    Raises LaminaError if a source has fewer than four documents.
    """
    purpose = "healing trains on some documents and picks the epoch on others"
    sequences = [[sample.sequence() for sample in source.samples] for source in sources]
    flags = held_out(sequences, VALIDATION_SHARE, seed, purpose, least=4)
    training, validation = (
        [
            Source(
                [
                    sample
                    for sample, out in zip(source.samples, drawn, strict=True)
                    if out == wanted
                ],
                source.weight,
            )
            for source, drawn in zip(sources, flags, strict=True)
        ]
        for wanted in (False, True)
    )
    return training, validation


def train(
    weights: Weights,
    objective: Objective,
    sources: Sequence[Source],
    options: Lora,
    as_saved: Callable[[], AbstractContextManager[None]],
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Train `weights`, which get the values of the kept epoch; return rows of table `training` (without its keys).

    Steps are taken in float32 (`Masters`) for every dtype; after each step the weights are rounded to their dtype.
    While `as_saved` is open, the variant computes as a saved variant. With `progress`, the state is saved after each
    epoch and every SAVE_STEPS steps. Training goes on from a saved state, with the random numbers, moments and batches
    of a run without interruption.

    Raises LaminaError if there are too few documents for a validation split, or the loss is not a number.
    """
    training, validation = split(sources, options.seed)
    masters = Masters(weights)
    optimiser = torch.optim.AdamW(
        masters.values.values(), lr=options.learning_rate, weight_decay=0.0
    )
    steps = list(_steps(training, options))
    warmup, memory = (
        min(options.warmup_steps, max(1, len(steps) // 10)),
        positions(objective, weights),
    )
    if warmup < options.warmup_steps:
        print(
            f"lamina: the learning rate rises over {warmup} of {len(steps)} steps, not {options.warmup_steps}"
        )
    saved = progress.load() if progress else None
    if saved is None:
        with as_saved():
            loss = validate(objective, validation, memory)
        rows: list[dict[str, Any]] = [
            {
                "step": 0,
                "epoch": 0,
                "validation_loss": loss,
                "learning_rate": 0.0,
                "tokens": 0,
                "chosen": True,
            }
        ]
        best = {name: weight.detach().clone() for name, weight in weights.items()}
    else:
        rows, best = saved[1]["rows"], _restored(saved[0], masters, optimiser)
        done.earlier += saved[1]["layer_tokens"]
    objective.variant.train()
    for number, step in enumerate(steps[rows[-1]["step"] :], rows[-1]["step"] + 1):
        rate = options.learning_rate * schedule(number, warmup, len(steps))
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss, count, memory = _halving(objective, step.groups, memory, masters)
        if math.isnan(loss):
            raise LaminaError(
                f"{objective.variant.config.model_type} gives NaN in healing, step {number}. Lower the learning_rate, "
                "or write dtype: float32 (or bfloat16) for this model."
            )
        torch.nn.utils.clip_grad_norm_(masters.values.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        masters.round()
        taken = {"step": number, "epoch": step.epoch, "loss": loss, "learning_rate": rate}
        rows.append(taken | {"tokens": rows[-1]["tokens"] + count, "chosen": False})
        if step.last:
            with as_saved():
                rows[-1]["validation_loss"] = validate(objective, validation, memory)
            objective.variant.train()
            (chosen,) = (row for row in rows if row["chosen"])
            if rows[-1]["validation_loss"] < chosen["validation_loss"]:
                chosen["chosen"], rows[-1]["chosen"] = False, True
                best = {name: weight.detach().clone() for name, weight in weights.items()}
        if progress and (step.last or number % SAVE_STEPS == 0):
            facts = {"rows": rows, "layer_tokens": done.total}
            progress.save(_state(masters, best, optimiser), facts)
    masters.release()
    for name, weight in weights.items():
        weight.data.copy_(best[name])
    return rows


class Masters:
    """Float32 weights for the optimiser, because most steps are smaller than half the spacing of bfloat16.

    `values` are, by name, the weights themselves if they are in float32, and float32 copies otherwise. Gradients of
    copied weights move to the copies as soon as they exist, so that no gradient is kept twice. `round` gives the
    weights the values of the copies, and `release` ends the connection.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.values = {
            name: weight if weight.dtype == torch.float32 else nn.Parameter(weight.detach().float())
            for name, weight in weights.items()
        }
        self._hooks = [
            weight.register_post_accumulate_grad_hook(partial(_handed_over, self.values[name]))
            for name, weight in weights.items()
            if self.values[name] is not weight
        ]

    def round(self) -> None:
        for name, weight in self.weights.items():
            if self.values[name] is not weight:
                weight.data.copy_(self.values[name].data)

    def forget(self) -> None:
        for weight in (*self.weights.values(), *self.values.values()):
            weight.grad = None

    def release(self) -> None:
        """Let the weights keep their gradients again."""
        for hook in self._hooks:
            hook.remove()


def _handed_over(master: nn.Parameter, weight: torch.Tensor) -> None:
    assert weight.grad is not None
    gradient = weight.grad.float()
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    weight.grad = None


def _state(
    masters: Masters, best: Mapping[str, torch.Tensor], optimiser: Any
) -> dict[str, torch.Tensor]:
    """The state of a run, which also depends on its settings; the number of steps determines the next batches."""
    state = {"random": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["random.cuda"] = torch.cuda.get_rng_state()
    for name, weight in masters.values.items():
        state |= {f"weight/{name}": weight, f"best/{name}": best[name]}
        state |= {f"{kind}/{name}": value for kind, value in optimiser.state[weight].items()}
    return state


def _restored(
    saved: Mapping[str, torch.Tensor], masters: Masters, optimiser: Any
) -> dict[str, torch.Tensor]:
    torch.set_rng_state(saved["random"])
    if "random.cuda" in saved:
        torch.cuda.set_rng_state(saved["random.cuda"])
    for name, weight in masters.values.items():
        weight.data.copy_(saved[f"weight/{name}"])
        state = {kind: saved[f"{kind}/{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")}
        # The step counts on the CPU.
        optimiser.state[weight] = {
            k: v if k == "step" else v.to(weight.device) for k, v in state.items()
        }
    masters.round()
    return {
        name: saved[f"best/{name}"].to(weight.device) for name, weight in masters.values.items()
    }


def positions(objective: Objective, weights: Weights) -> int:
    """Token positions, padding included, whose activations fit into half of the free memory (2 GiB on a CPU).

    On a GPU, the memory that the optimiser will need for `weights` does not count as free.
    """
    model = objective.variant
    shape, kept = Shape.of(model.config, model.dtype.itemsize), 0
    if model.device.type == "cuda":
        kept = sum(
            round(weight.numel() * stepped(weight.dtype.itemsize)) for weight in weights.values()
        )
    return int(
        (room(model) - kept // 2) // trained(shape, shape.layers, objective.name == "distill")
    )


def _halving(
    objective: Objective, groups: Sequence[Sequence[Sample]], memory: int, masters: Masters
) -> tuple[float, int, int]:
    """Does as `backward`, and again with half the positions if memory runs out; also returns the positions that fit."""
    lengths = [len(tokens(sample)[0]) for group in groups for sample in group]
    asked = min(memory, len(lengths) * max(lengths))
    (loss, count), fitting_memory = fitting(
        partial(backward, objective, groups), asked, max(lengths), masters.forget
    )
    return loss, count, memory if fitting_memory == asked else fitting_memory


def backward(
    objective: Objective, groups: Sequence[Sequence[Sample]], memory: int
) -> tuple[float, int]:
    """Add the gradient of a batch's mean loss per token, in as many parts as memory needs. Groups are padded apart.

    Returns the loss and the number of scored tokens.
    """
    counts = objective.counts([sample for group in groups for sample in group])
    total = [0.0] * len(counts)
    for group in groups:
        for part in by_length([len(tokens(sample)[0]) for sample in group], memory):
            # In the order of the batch, which in one part is then the batch itself.
            sums = objective.sums([group[number] for number in sorted(part)])
            mean = sums[0] / counts[0]
            for value, count in zip(sums[1:], counts[1:], strict=True):
                mean = mean + value / count
            mean.backward()
            total = [
                before + float(value.detach()) for before, value in zip(total, sums, strict=True)
            ]
    return sum(value / count for value, count in zip(total, counts, strict=True)), counts[0]


@torch.no_grad()
def validate(objective: Objective, sources: Sequence[Source], memory: int) -> float:
    """The objective on validation samples, in batches of at most `memory` positions.

    It is a mean per token in which tokens have the weight of their source.

    Raises LaminaError if the objective is not a number.
    """
    objective.variant.eval()
    total: list[float] = []
    count: list[float] = []
    for samples, weight in sources:

        def measure(
            group: list[int], samples: Sequence[Sample] = samples, weight: float = weight
        ) -> None:
            batch = [samples[number] for number in group]
            sums = [weight * float(value) for value in objective.sums(batch)]
            among = [weight * value for value in objective.counts(batch)]
            total[:] = [a + b for a, b in zip(total or [0.0] * len(sums), sums, strict=True)]
            count[:] = [a + b for a, b in zip(count or [0.0] * len(among), among, strict=True)]

        for group in by_length([len(tokens(sample)[0]) for sample in samples], memory):
            halved(measure, group, in_two)
    loss = sum(a / b for a, b in zip(total, count, strict=True))
    if math.isnan(loss):
        raise LaminaError(
            f"{objective.variant.config.model_type} gives NaN during the validation of a healing; use dtype: float32."
        )
    return loss


def schedule(step: int, warmup: int, total: int) -> float:
    """Factor of the learning rate at `step` (1 … total): linear warm-up, then a cosine to 0."""
    if step <= warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def _steps(sources: Sequence[Source], options: Lora) -> Iterator[Step]:
    """All steps of a training, the same for the same seed."""
    order, number = random.Random(options.seed), 0
    for epoch in range(1, options.epochs + 1):
        batches = _shuffled(sources[0].samples, options.batch, order)
        if len(sources) > 1:
            batches = _mixed(sources, options.batch, order)
        left = (
            len(batches)
            if options.max_steps is None
            else min(len(batches), options.max_steps - number)
        )
        yield from (
            Step(epoch, groups, place == left) for place, groups in enumerate(batches[:left], 1)
        )
        number += left


def _shuffled(
    samples: Sequence[Sample], size: int, order: random.Random
) -> list[list[list[Sample]]]:
    """Batches of samples of similar length, for little padding, in random order, for no curriculum."""
    shuffled = list(samples)
    order.shuffle(shuffled)
    shuffled.sort(key=lambda sample: len(tokens(sample)[0]))
    batches = [[shuffled[start : start + size]] for start in range(0, len(shuffled), size)]
    order.shuffle(batches)
    return batches


def _mixed(sources: Sequence[Source], size: int, order: random.Random) -> list[list[list[Sample]]]:
    """Batches drawn from several sources at once, so that each scored token of a batch counts the same.

    The source with the greatest weight gives all its samples once. Every other source gives a random share of its
    samples: its weight divided by the greatest weight.
    """
    greatest = max(source.weight for source in sources)
    drawn = [
        (number, sample)
        for number, (samples, weight) in enumerate(sources)
        for sample in order.sample(samples, max(1, round(len(samples) * weight / greatest)))
    ]
    order.shuffle(drawn)
    batches = [drawn[start : start + size] for start in range(0, len(drawn), size)]
    return [
        [
            group
            for n in range(len(sources))
            if (group := [sample for number, sample in batch if number == n])
        ]
        for batch in batches
    ]

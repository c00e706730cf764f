"""The optimiser steps of a healing, its validation, and how it continues after an interruption.

The best epoch is chosen on validation documents, which are split from the given ones and are never
test data. Epoch 0, the variant before training, may be chosen too. The learning rate rises linearly
over `warmup_steps` (at most a tenth of all steps) and then falls as a cosine to 0 at the last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch
from torch import nn

from lamina.data.calibrations import Sample
from lamina.engine.batches import by_length, in_two, run_in_halves, shrink_to_memory
from lamina.engine.footprint import Shape, optimizer_bytes, trained_position_bytes
from lamina.engine.memory import available_bytes
from lamina.errors import LaminaError
from lamina.healing.batches import (
    OptimiserStep,
    TrainingSource,
    count_tokens,
    plan_steps,
    split_sources,
)
from lamina.healing.objectives import Objective
from lamina.models.workload import done
from lamina.options.healings import Healing
from lamina.store.unfinished import Progress

SAVE_INTERVAL = 100  # optimiser steps between two saves of the progress
MAX_GRADIENT_NORM = 1.0


class TrainingRow(TypedDict):
    """A row of table `training` without the keys of its variant."""

    step: int  # from 1; 0 before training
    epoch: int
    learning_rate: float
    tokens: int  # scored tokens so far
    chosen: bool  # whether the weights after this step are kept
    loss: NotRequired[float]  # of the batch, nats per token; not of step 0
    validation_loss: NotRequired[float]  # of step 0 and of the last step of each epoch


class BatchLoss(NamedTuple):
    """The loss of a batch, a mean over its scored tokens, and their number."""

    mean: float
    n_scored: int


class Trainer:
    """One training, from the split of its documents to the weights of its best epoch.

    weights: what is trained, by name; at the end, the weights of the best epoch.
    as_saved: while this context is open, the variant computes as it will after it is saved and
        loaded.
    progress: where the state is saved after each epoch and every SAVE_INTERVAL steps. A training
        continues from a saved state with the random numbers, moments and batches of an
        uninterrupted one.

    Raises LaminaError if there are too few documents for a validation split, or if the loss is not
    a number.
    """

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        objective: Objective,
        sources: Sequence[TrainingSource],
        options: Healing,
        as_saved: Callable[[], AbstractContextManager[None]],
        progress: Progress | None = None,
    ) -> None:
        training_sources, self.validation_sources = split_sources(sources, options.seed)
        self.weights = weights
        self.objective = objective
        self.as_saved = as_saved
        self.progress = progress
        all_steps = list(plan_steps(training_sources, options))
        self.kept_epoch = None if options.keep == "best" else options.keep
        self.steps = end_at_epoch(all_steps, self.kept_epoch)
        self.n_planned_steps = len(all_steps)  # the length of the learning rate schedule
        self.peak_learning_rate = options.learning_rate
        self.warmup_steps = limit_warmup(options.warmup_steps, self.n_planned_steps)
        self.max_positions = position_budget(objective, weights)

        self.masters = MasterWeights(weights)
        self.optimiser = torch.optim.AdamW(
            self.masters.float32_weights.values(), lr=options.learning_rate, weight_decay=0.0
        )
        self.rows: list[TrainingRow] = []
        self.best_weights: dict[str, torch.Tensor] = {}

    def run(self) -> list[TrainingRow]:
        """Take all steps that are left; return a row for each step, and one for step 0."""
        saved_state = self.progress.load() if self.progress else None
        if saved_state is None:
            self._begin()
        else:
            self._restore(*saved_state)

        n_taken = self.rows[-1]["step"]
        self.objective.variant.train()
        for step_number, step in enumerate(self.steps[n_taken:], start=n_taken + 1):
            self._take_step(step_number, step)
            if step.ends_epoch:
                self._validate_epoch()
            if self.progress and (step.ends_epoch or step_number % SAVE_INTERVAL == 0):
                facts = {"rows": self.rows, "layer_tokens": done.total}
                self.progress.save(self._state(), facts)

        self.masters.release()
        for name, weight in self.weights.items():
            weight.data.copy_(self.best_weights[name])
        return self.rows

    def _begin(self) -> None:
        """Validate the variant before training: epoch 0."""
        row: TrainingRow = {
            "step": 0,
            "epoch": 0,
            "validation_loss": self._validation_loss(),
            "learning_rate": 0.0,
            "tokens": 0,
            "chosen": True,
        }
        self.rows.append(row)
        self._keep_weights()

    def _take_step(self, step_number: int, step: OptimiserStep) -> None:
        learning_rate = self.peak_learning_rate * scale_learning_rate(
            step_number, self.warmup_steps, self.n_planned_steps
        )
        for parameter_group in self.optimiser.param_groups:
            parameter_group["lr"] = learning_rate

        batch_loss = self._backpropagate(step.sample_groups)
        if math.isnan(batch_loss.mean):
            raise LaminaError(
                f"the loss of {self._family} is NaN at step {step_number} of a healing. Lower its "
                "`learning_rate`, or write `dtype: float32` (or `bfloat16`) for this model."
            )
        torch.nn.utils.clip_grad_norm_(self.masters.float32_weights.values(), MAX_GRADIENT_NORM)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.masters.round_weights()

        training_row: TrainingRow = {
            "step": step_number,
            "epoch": step.epoch,
            "loss": batch_loss.mean,
            "learning_rate": learning_rate,
            "tokens": self.rows[-1]["tokens"] + batch_loss.n_scored,
            "chosen": False,
        }
        self.rows.append(training_row)

    def _backpropagate(self, sample_groups: Sequence[Sequence[Sample]]) -> BatchLoss:
        """Accumulate the gradient of a batch; if memory runs out, later micro-batches are smaller."""
        sample_lengths = [count_tokens(sample) for group in sample_groups for sample in group]
        longest_sample = max(sample_lengths)
        n_positions = min(self.max_positions, len(sample_lengths) * longest_sample)
        batch_loss, n_fitting = shrink_to_memory(
            partial(accumulate_gradients, self.objective, sample_groups),
            n_positions,
            longest_sample,
            self.masters.clear_gradients,
        )
        if n_fitting < n_positions:
            self.max_positions = n_fitting
        return batch_loss

    def _validate_epoch(self) -> None:
        """Validate the weights after the last step, and keep them if they are the best so far.

        If the options name an epoch, its weights are kept, however good they are.
        """
        last_row = self.rows[-1]
        last_row["validation_loss"] = self._validation_loss()
        self.objective.variant.train()
        (chosen_row,) = (row for row in self.rows if row["chosen"])
        is_kept = last_row["validation_loss"] < chosen_row["validation_loss"]
        if self.kept_epoch is not None:
            is_kept = last_row["epoch"] == self.kept_epoch
        if is_kept:
            chosen_row["chosen"] = False
            last_row["chosen"] = True
            self._keep_weights()

    def _validation_loss(self) -> float:
        with self.as_saved():
            loss = measure_validation_loss(
                self.objective, self.validation_sources, self.max_positions
            )
        if math.isnan(loss):
            raise LaminaError(
                f"the validation loss of {self._family} is NaN in a healing. Write "
                "`dtype: float32` (or `bfloat16`) for this model."
            )
        return loss

    def _keep_weights(self) -> None:
        for name, weight in self.weights.items():
            self.best_weights[name] = weight.detach().clone()

    @property
    def _family(self) -> str:
        return str(self.objective.variant.config.model_type)

    def _state(self) -> dict[str, torch.Tensor]:
        """The tensors that the next steps depend on.

        The batches follow from the number of steps taken.
        """
        saved_tensors = {"random": torch.get_rng_state()}
        if torch.cuda.is_available():
            saved_tensors["random.cuda"] = torch.cuda.get_rng_state()
        for name, weight in self.masters.float32_weights.items():
            saved_tensors[f"weight/{name}"] = weight
            saved_tensors[f"best/{name}"] = self.best_weights[name]
            for moment, moment_value in self.optimiser.state[weight].items():
                saved_tensors[f"{moment}/{name}"] = moment_value
        return saved_tensors

    def _restore(
        self, saved_tensors: Mapping[str, torch.Tensor], saved_facts: Mapping[str, Any]
    ) -> None:
        """Continue from tensors that `_state` returned."""
        torch.set_rng_state(saved_tensors["random"])
        if "random.cuda" in saved_tensors:
            torch.cuda.set_rng_state(saved_tensors["random.cuda"])
        for name, weight in self.masters.float32_weights.items():
            weight.data.copy_(saved_tensors[f"weight/{name}"])
            self.best_weights[name] = saved_tensors[f"best/{name}"].to(weight.device)
            # A weight without a gradient, as in an image tower, has no moments.
            if f"step/{name}" not in saved_tensors:
                continue
            self.optimiser.state[weight] = {
                "step": saved_tensors[f"step/{name}"],  # AdamW counts on the CPU
                "exp_avg": saved_tensors[f"exp_avg/{name}"].to(weight.device),
                "exp_avg_sq": saved_tensors[f"exp_avg_sq/{name}"].to(weight.device),
            }
        self.masters.round_weights()
        self.rows = saved_facts["rows"]
        done.earlier += saved_facts["layer_tokens"]


class MasterWeights:
    """Float32 copies of the trained weights, on which the optimiser takes its steps.

    Most steps are smaller than half the spacing of bfloat16 numbers, and would be lost in rounding.
    Weights that are already in float32 are their own masters. The gradient of every other weight
    moves to its master as soon as it is complete, so that no gradient is stored twice.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self.weights = weights
        self.float32_weights: dict[str, nn.Parameter] = {}
        self._hooks = []
        for name, weight in weights.items():
            if weight.dtype == torch.float32:
                self.float32_weights[name] = weight
                continue
            master_weight = nn.Parameter(weight.detach().float())
            self.float32_weights[name] = master_weight
            hook = partial(_move_gradient, master_weight)
            self._hooks.append(weight.register_post_accumulate_grad_hook(hook))

    def round_weights(self) -> None:
        """Give the weights the values of their masters, rounded to their own dtype."""
        for name, weight in self.weights.items():
            if self.float32_weights[name] is not weight:
                weight.data.copy_(self.float32_weights[name].data)

    def clear_gradients(self) -> None:
        """Forget the gradients of a batch that ran out of memory."""
        for weight in (*self.weights.values(), *self.float32_weights.values()):
            weight.grad = None

    def release(self) -> None:
        """Stop moving gradients to the masters."""
        for hook in self._hooks:
            hook.remove()


def _move_gradient(master_weight: nn.Parameter, weight: torch.Tensor) -> None:
    """Add the gradient of a weight to that of its master, and free it."""
    assert weight.grad is not None
    gradient = weight.grad.float()
    master_weight.grad = (
        gradient if master_weight.grad is None else master_weight.grad.add_(gradient)
    )
    weight.grad = None


def end_at_epoch(steps: Sequence[OptimiserStep], epoch: int | None) -> list[OptimiserStep]:
    """The steps up to the end of an epoch; all of them for None.

    Raises LaminaError if the steps end before this epoch does.
    """
    if epoch is None:
        return list(steps)
    last_epoch = steps[-1].epoch if steps else 0
    if epoch > last_epoch:
        raise LaminaError(
            f"keep: {epoch} asks for weights after epoch {epoch}, but `max_steps` ends the training "
            f"in epoch {last_epoch}. Write more steps, or keep: {last_epoch}."
        )
    return [step for step in steps if step.epoch <= epoch]


def limit_warmup(warmup_steps: int, n_steps: int) -> int:
    """The number of warm-up steps, limited to a tenth of all steps."""
    n_warmup = min(warmup_steps, max(1, n_steps // 10))
    if n_warmup < warmup_steps:
        print(
            f"lamina: the learning rate warms up over {n_warmup} of {n_steps} steps, not "
            f"{warmup_steps}"
        )
    return n_warmup


def scale_learning_rate(step_number: int, warmup_steps: int, n_steps: int) -> float:
    """The factor of the peak learning rate at a step, 1 … n_steps.

    The factor rises linearly to 1, and then falls as a cosine to 0.
    """
    if step_number <= warmup_steps:
        return step_number / warmup_steps
    angle = math.pi * (step_number - warmup_steps) / max(1, n_steps - warmup_steps)
    return 0.5 * (1 + math.cos(angle))


def position_budget(objective: Objective, weights: Mapping[str, nn.Parameter]) -> int:
    """The token positions of a micro-batch, padding included.

    Their activations fit into half of the free memory, or into 2 GiB on a CPU.

    On a GPU, the memory that the optimiser will need for `weights` does not count as free.
    """
    model = objective.variant
    free_bytes = available_bytes(model)
    if model.device.type == "cuda":
        optimiser_bytes = 0
        for weight in weights.values():
            optimiser_bytes += round(weight.numel() * optimizer_bytes(weight.dtype.itemsize))
        free_bytes -= optimiser_bytes // 2
    shape = Shape.of(model.config, model.dtype.itemsize)
    bytes_per_position = trained_position_bytes(shape, shape.layers, objective.name == "distill")
    return int(free_bytes // bytes_per_position)


def accumulate_gradients(
    objective: Objective, sample_groups: Sequence[Sequence[Sample]], max_positions: int
) -> BatchLoss:
    """Add the gradient of a batch's mean loss per token to the weights.

    The batch is run in parts of at most `max_positions` token positions.

    Each group of samples is padded on its own.
    """
    n_tokens_by_loss = objective.count_tokens(
        [sample for group in sample_groups for sample in group]
    )
    loss_sums = [0.0] * len(n_tokens_by_loss)
    for group in sample_groups:
        lengths = [count_tokens(sample) for sample in group]
        for part_indices in by_length(lengths, max_positions):
            # Keep the order of the batch, so that a single part equals the whole batch.
            part_losses = objective.sum_losses([group[index] for index in sorted(part_indices)])
            mean_loss = part_losses[0] / n_tokens_by_loss[0]
            for loss, n_tokens in zip(part_losses[1:], n_tokens_by_loss[1:], strict=True):
                mean_loss = mean_loss + loss / n_tokens
            mean_loss.backward()
            for loss_index, loss in enumerate(part_losses):
                loss_sums[loss_index] += float(loss.detach())
    loss_means = [
        total / n_tokens for total, n_tokens in zip(loss_sums, n_tokens_by_loss, strict=True)
    ]
    return BatchLoss(sum(loss_means), n_tokens_by_loss[0])


@torch.no_grad()
def measure_validation_loss(
    objective: Objective, sources: Sequence[TrainingSource], max_positions: int
) -> float:
    """The objective on validation samples, a mean per token, weighted by source.

    The batches have at most `max_positions` token positions.
    """
    objective.variant.eval()
    losses = WeightedLosses(objective)
    for source in sources:
        lengths = [count_tokens(sample) for sample in source.samples]
        for batch in by_length(lengths, max_positions):
            run_in_halves(partial(losses.add_batch, source), batch, in_two)
    return losses.mean()


class WeightedLosses:
    """Sums of an objective's losses and token counts over batches from several sources."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        n_losses = len(objective.count_tokens([]))
        self.loss_sums = [0.0] * n_losses
        self.token_counts = [0.0] * n_losses

    def add_batch(self, source: TrainingSource, sample_indices: Sequence[int]) -> None:
        """Add some samples of a source. Nothing is added if memory runs out."""
        samples = [source.samples[index] for index in sample_indices]
        losses = [float(loss) for loss in self.objective.sum_losses(samples)]
        counts = self.objective.count_tokens(samples)
        for loss_index, (loss, count) in enumerate(zip(losses, counts, strict=True)):
            self.loss_sums[loss_index] += source.weight * loss
            self.token_counts[loss_index] += source.weight * count

    def mean(self) -> float:
        """The objective: the sum of its losses, each a weighted mean per token."""
        return sum(
            loss_sum / count
            for loss_sum, count in zip(self.loss_sums, self.token_counts, strict=True)
        )

"""The losses of a healing: language modelling, distillation, and distance of residual streams.

A loss is a sum over the tokens of a batch, divided by the number of these tokens in the whole
batch. It depends neither on padding nor on how a batch is split into parts. A token is *scored* if
it belongs to the gold continuation of a sample: all tokens of a text but the first, or what a model
generated after a prompt.

The teacher of `distill` and `lm+hidden` is the unpruned model, which shares its weights with the
variant. Adapters wrap modules of the variant only, so the teacher computes as before and needs no
memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine.batches import pad_sequences
from lamina.engine.taps import tap_boundaries
from lamina.errors import LaminaError
from lamina.models.boundary import Place
from lamina.models.export.modeling_lamina import Patched, repair
from lamina.models.structure import final_norm_of, layers_of
from lamina.models.surgery import find_runs, steps_of

CHUNK_SIZE = 1 << 23  # logits that are converted to float32 at a time, 32 MiB


@dataclass(frozen=True)
class ScoredBatch:
    """The padded tokens of B samples, T in the longest one, and which of them are scored."""

    token_ids: torch.Tensor  # (B, T), on the device of the variant
    is_scored: torch.Tensor  # (B, T - 1): whether token t + 1, which position t predicts, is scored
    is_read: torch.Tensor  # (B, T or T - 1): whether the model reads the token; False for padding

    @classmethod
    def of(cls, samples: Sequence[Sample], device: torch.device) -> ScoredBatch:
        """The batch of some samples: their contexts and gold continuations."""
        gold_rows = [sample.rows[sample.gold] for sample in samples]
        token_ids, is_real = pad_sequences(
            [row.context + row.continuation for row in gold_rows], device
        )
        first_scored = torch.tensor([[len(row.context)] for row in gold_rows], device=device)
        positions = torch.arange(is_real.shape[1], device=device)
        is_scored = is_real & (positions >= first_scored)
        # A row may be one token longer than the model's context: its last token is only predicted.
        n_read = max(len(sample.sequence()) for sample in samples)
        return cls(token_ids, is_scored[:, 1:], is_real[:, :n_read])

    @property
    def model_inputs(self) -> dict[str, Any]:
        """The arguments of the models' forward pass."""
        return {
            "input_ids": self.token_ids[:, : self.is_read.shape[1]],
            "attention_mask": self.is_read.long(),
            "use_cache": False,
        }

    @property
    def targets(self) -> torch.Tensor:
        """The ids of the scored tokens, (n_scored,)."""
        return self.token_ids[:, 1:][self.is_scored]

    def select_predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits (n_scored, V) that predict the scored tokens, out of all, (B, T, V)."""
        return logits[:, : self.is_scored.shape[1]][self.is_scored]


@dataclass(frozen=True)
class Objective:
    """One of the objectives `lm`, `distill` and `lm+hidden`, for a variant of `base`."""

    name: str
    variant: PreTrainedModel  # materialised; it may have adapters
    base: PreTrainedModel
    temperature: float = 1.0
    # The streams that are compared: for each run of removed layers, the layer of `base` after it,
    # and the position of that layer in the variant. Empty unless the objective is `lm+hidden`.
    compared_layers: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def for_plan(
        cls,
        name: str,
        variant: PreTrainedModel,
        base: PreTrainedModel,
        plan: Mapping[str, Any],
        temperature: float,
    ) -> Objective:
        """The objective for the variant of a plan.

        Raises LaminaError if the objective compares streams and the plan removes sub-layers.
        """
        if name != "lm+hidden":
            return cls(name, variant, base, temperature)
        compared_layers = {}
        steps = steps_of(base, plan["units"])
        for start, end in find_runs(plan["units"], len(layers_of(base))):
            if start % 1 or end % 1:
                raise LaminaError(
                    "objective: lm+hidden compares the streams after removed layers, but this "
                    "plan removes sub-layers. Write `objective: lm` or `objective: distill`, or "
                    "heal a selector with `units: layer`."
                )
            compared_layers[int(end)] = Place.of((start, end), steps).position
        return cls(name, variant, base, temperature, compared_layers)

    def count_tokens(self, samples: Sequence[Sample]) -> list[int]:
        """The number of tokens by which each of the `sum_losses` is divided.

        For logits these are the scored tokens, for streams all tokens that are read.
        """
        counts = [sum(len(sample.rows[sample.gold].continuation) for sample in samples)]
        if self.compared_layers:
            counts.append(sum(len(sample.sequence()) for sample in samples))
        return counts

    def sum_losses(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """The loss summed over the scored tokens of a batch, a scalar in float32.

        If streams are compared, their distance, summed over all tokens, is a second one.
        """
        batch = ScoredBatch.of(samples, self.variant.device)
        with ExitStack() as taps:
            variant_boundaries = list(self.compared_layers.values())
            variant_streams = taps.enter_context(tap_boundaries(self.variant, variant_boundaries))
            base_streams = taps.enter_context(tap_boundaries(self.base, list(self.compared_layers)))
            logits = batch.select_predictions(self.variant(**batch.model_inputs).logits)
            teacher_logits = self._run_teacher(batch)

        if teacher_logits is not None:
            return [Divergence.apply(logits, teacher_logits, self.temperature)]
        losses = [functional.cross_entropy(logits.float(), batch.targets, reduction="sum")]
        if self.compared_layers:
            losses.append(self._sum_distances(variant_streams, base_streams, batch.is_read))
        return losses

    @torch.no_grad()
    def _run_teacher(self, batch: ScoredBatch) -> torch.Tensor | None:
        """Run as much of the base model as needed; for `distill`, return its logits.

        The logits are those that predict the scored tokens, (n_scored, V).
        """
        if self.name == "distill":
            return batch.select_predictions(self.base(**batch.model_inputs).logits)
        if self.compared_layers:
            # Only its streams are needed, so the head does not run.
            decoder: Any = self.base.base_model
            decoder(**batch.model_inputs)
        return None

    def _sum_distances(
        self,
        variant_streams: Mapping[float, torch.Tensor],
        base_streams: Mapping[float, torch.Tensor],
        is_read: torch.Tensor,
    ) -> torch.Tensor:
        """‖h - ĥ‖² / ‖h‖² summed over tokens, mean over runs of removed layers.

        h is the stream after the run in the base model, and ĥ that of the variant, after its patch
        [arXiv 2403.17887, eq. 8, which does not divide]. The first token's stream is often a
        thousand times larger than all others, and would dominate without the division.
        """
        distance_sum = is_read.new_zeros((), dtype=torch.float32)
        for base_layer, position in self.compared_layers.items():
            base_stream = base_streams[base_layer][is_read].float()
            variant_stream = self._apply_patch(variant_streams[position][is_read], position)
            squared_norm = base_stream.square().sum(-1)
            squared_norm = squared_norm.clamp_min(torch.finfo(torch.float32).tiny)
            difference = variant_stream.to(base_stream.device).float() - base_stream
            distances = difference.square().sum(-1) / squared_norm
            distance_sum = distance_sum + distances.sum() / len(self.compared_layers)
        return distance_sum

    def _apply_patch(self, stream: torch.Tensor, position: int) -> torch.Tensor:
        """The input (tokens, C) of a layer of the variant, or of its final norm, after the patch."""
        layers = layers_of(self.variant)
        module = layers[position] if position < len(layers) else final_norm_of(self.variant)
        if not isinstance(module, Patched):
            return stream
        # Streams were moved to the variant's first device; a patch is on the device of its layer.
        patch_device = next(iter(module.patch_parts.values())).device
        return repair(stream.to(patch_device), module.patch_parts)


class Divergence(torch.autograd.Function):
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), a sum over tokens, of logits (tokens, V).

    The gradient, T (softmax(student / T) - softmax(teacher / T)), is computed together with the
    value, for some tokens at a time. So the float32 probabilities of a whole batch are never kept.
    The gradient is exactly zero where the logits are equal.
    """

    @staticmethod
    def forward(
        ctx: Any, student_logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """The sum, a scalar in float32. Only the student gets a gradient."""
        gradient = torch.empty_like(student_logits)
        divergence_sum = torch.zeros((), dtype=torch.float64, device=student_logits.device)
        n_tokens = max(1, CHUNK_SIZE // student_logits.shape[-1])
        chunks = zip(
            student_logits.split(n_tokens),
            teacher_logits.split(n_tokens),
            gradient.split(n_tokens),
            strict=True,
        )
        for student_chunk, teacher_chunk, gradient_chunk in chunks:
            log_q = functional.log_softmax(student_chunk.float() / temperature, -1)
            log_p = functional.log_softmax(teacher_chunk.float() / temperature, -1)
            p = log_p.exp()
            divergence_sum += (p * (log_p - log_q)).sum(dtype=torch.float64)
            gradient_chunk.copy_(temperature * (log_q.exp() - p))
        ctx.save_for_backward(gradient)
        return (temperature**2 * divergence_sum).float()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[torch.Tensor, None, None]:
        """The gradient from `forward`, times the gradient of the sum."""
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0], None, None

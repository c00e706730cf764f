"""The objectives of a healing: sums over a batch, each divided by its number of tokens over all parts of the batch.

So a loss depends neither on padding nor on how a batch is split. A token is *scored* if it belongs to the gold
continuation of a sample: of a text, all but its first token, or what the model wrote behind a prompt.

The teacher of `distill` and `lm+hidden` is the unpruned model, which shares its weights with the variant. Adapters wrap
only the variant's modules, so the base model computes as before, with the same weights in memory.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine.batches import padded
from lamina.engine.taps import tapped
from lamina.errors import LaminaError
from lamina.models.boundary import Place
from lamina.models.export.modeling_lamina import Patched, repair
from lamina.models.structure import final_norm_of, layers_of
from lamina.models.surgery import kept_layers, runs

_CHUNK = 1 << 23  # numbers in float32 at a time, 32 MiB


def tokens(sample: Sample) -> tuple[list[int], int]:
    """Token ids of context and gold continuation, and the position of the first scored token."""
    row = sample.rows[sample.gold]
    ids = [*row.context, *row.continuation]
    return ids, max(1, len(row.context))


@dataclass(frozen=True)
class Objective:
    """An objective, by its name in the options, for a variant that is `base` without the plan's units."""

    name: str
    variant: PreTrainedModel  # materialised; it may have adapters
    base: PreTrainedModel
    temperature: float = 1.0
    # By the end of each run of removed layers in `base`, the number of the variant's layers before it.
    places: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        variant: PreTrainedModel,
        base: PreTrainedModel,
        plan: Mapping[str, Any],
        temperature: float,
    ) -> "Objective":
        """The objective for a plan.

        Raises LaminaError if the objective compares streams and the plan removes no whole layer.
        """
        places: dict[int, int] = {}
        if name == "lm+hidden":
            kept = kept_layers(base, plan["units"])
            found = runs(plan["units"], len(layers_of(base)))
            places = {int(run[1]): Place.of(run, kept).position for run in found}
            if any(place % 1 for run in found for place in run):
                raise LaminaError(
                    "objective: lm+hidden compares streams where layers went, and this plan removes halves of layers. "
                    "Write objective: lm or distill, or heal a selector with units: layer."
                )
        return cls(name, variant, base, temperature, places)

    def counts(self, samples: Sequence[Sample]) -> list[int]:
        """The number of tokens by which each of the `sums` is divided: scored tokens, and for streams all tokens."""
        lengths = [(len(ids), first) for ids, first in map(tokens, samples)]
        scored = sum(length - first for length, first in lengths)
        return [
            scored,
            *([sum(len(sample.sequence()) for sample in samples)] if self.places else []),
        ]

    def sums(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """The loss, summed over the tokens of a batch, and the distance of streams if they are compared."""
        encoded = [tokens(sample) for sample in samples]
        inputs, real = padded([ids for ids, _ in encoded], self.variant.device)
        first = torch.tensor([[start] for _, start in encoded], device=inputs.device)
        scored = (real & (torch.arange(real.shape[1], device=inputs.device) >= first))[:, 1:]
        # The last token of a row that is one longer than the model's context is predicted, and not read.
        read = real[:, : max(len(sample.sequence()) for sample in samples)]
        feed: dict[str, Any] = {
            "input_ids": inputs[:, : read.shape[1]],
            "attention_mask": read.long(),
        }
        feed["use_cache"] = False
        with ExitStack() as stack:
            mine, _ = stack.enter_context(tapped(self.variant, list(self.places.values())))
            theirs, _ = stack.enter_context(tapped(self.base, list(self.places)))
            logits = self.variant(**feed).logits[:, : scored.shape[1]][scored]
            with torch.no_grad():
                if self.name == "distill":
                    wanted = self.base(**feed).logits[:, : scored.shape[1]][scored]
                elif self.places:
                    body: Any = self.base.base_model
                    body(**feed)
            if self.name == "distill":
                return [Divergence.apply(logits, wanted, self.temperature)]
            loss = functional.cross_entropy(logits.float(), inputs[:, 1:][scored], reduction="sum")
            return [loss, *([self._distance(mine, theirs, read)] if self.places else [])]

    def _distance(
        self,
        mine: Mapping[float, torch.Tensor],
        theirs: Mapping[float, torch.Tensor],
        real: torch.Tensor,
    ) -> torch.Tensor:
        """‖h - ĥ‖² / ‖h‖² summed over real tokens, mean over runs: h enters the layer after the run in the unpruned
        model, and ĥ in the variant, after its patch (arXiv 2403.17887, eq. 8, without the division).

        The division is needed because the first token's stream is often a thousand times as large as all others.
        """
        total = real.new_zeros((), dtype=torch.float32)
        for end, place in self.places.items():
            wanted, stream = theirs[end][real].float(), mine[place][real]
            layers = layers_of(self.variant)
            after = layers[place] if place < len(layers) else final_norm_of(self.variant)
            if isinstance(after, Patched):
                # Streams have come to the first device, and a patch stands where its layer does.
                parts = after.patch_parts
                stream = repair(stream.to(next(iter(parts.values())).device), parts)
            square = wanted.square().sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
            far = stream.to(wanted.device).float() - wanted
            total = total + (far.square().sum(-1) / square).sum() / len(self.places)
        return total


class Divergence(torch.autograd.Function):
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), summed over tokens, for logits (tokens, V).

    The gradient, T (softmax(student / T) - softmax(teacher / T)), is computed together with the value, for some tokens
    at a time. So no float32 probabilities of a whole batch are kept. It is exactly zero where the logits are equal.
    """

    @staticmethod
    def forward(
        ctx: Any, student: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """The sum, a scalar in float32; only the student gets a gradient."""
        gradient = torch.empty_like(student)
        total = torch.zeros((), dtype=torch.float64, device=student.device)
        rows = max(1, _CHUNK // student.shape[-1])
        for mine, theirs, part in zip(
            student.split(rows), teacher.split(rows), gradient.split(rows), strict=True
        ):
            log_q = functional.log_softmax(mine.float() / temperature, -1)
            log_p = functional.log_softmax(theirs.float() / temperature, -1)
            p = log_p.exp()
            total += (p * (log_p - log_q)).sum(dtype=torch.float64)
            part.copy_(temperature * (log_q.exp() - p))
        ctx.save_for_backward(gradient)
        return (temperature**2 * total).float()

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[torch.Tensor, None, None]:
        """The saved gradient times the gradient of the output."""
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None

"""The ablation engine: every unit's removal measured on a calibration, for a fraction of one evaluation per unit."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.errors import LaminaError
from lamina.models.families import layers_of
from lamina.models.surgery import parse
from lamina.sweep import packing, streams
from lamina.sweep.packing import Line
from lamina.sweep.scores import Scores
from lamina.sweep.streams import BASE, CURRENT, ForkingLayer, SelectingHead, Streams

Pass = Literal["removal", "stream"]


def all_units(n_layers: int, kind: str, removed: Sequence[str] = ()) -> list[str]:
    """Units of one kind that are still there, from the first layer on."""
    suffix = "" if kind == "layer" else f".{kind}"
    return [f"{layer}{suffix}" for layer in range(n_layers) if f"{layer}{suffix}" not in removed]


def share_by_cost(units: Sequence[str], n_layers: int, block: int, blocks: int) -> list[str]:
    """The units that job `block` of `blocks` measures, shared so that all jobs cost about the same.

    Removing a unit of layer l costs the suffix from l on; every job also pays the pass of the model itself, which does
    not depend on its share. Largest first onto the least loaded job.
    """
    loads = [0] * blocks
    mine = []
    for unit in sorted(units, key=lambda u: parse(u)[0]):
        job = loads.index(min(loads))
        loads[job] += n_layers - parse(unit)[0]
        if job == block:
            mine.append(unit)
    return mine


@torch.inference_mode()
def sweep(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str] = (),
    what: Pass = "removal",
    tokens: int = 16384,
    outputs: bool = True,
) -> Scores:
    """Measure the removal of each of `units` from `model` without its `removed` units, on every sample.

    Parameters
    ----------
    model
        The base model, complete: `removed` units are skipped on the way, not cut out.
    what
        "removal" evaluates the model without each unit; "stream" runs the current model alone, which is enough for the
        metrics that compare a unit's input with its output.
    tokens
        Budget of one pass: lines × streams × length. Memory follows it.
    outputs
        Whether to compare the outputs with the unpruned model's.

    Raises
    ------
    LaminaError
        If the model itself yields logits that are not numbers.
    """
    scores = Scores([CURRENT, *units], samples)
    share = not streams.uses_alibi(model)
    lines = [line for number, sample in enumerate(samples) for line in packing.pack(number, sample, share)]
    config = model.config.get_text_config()
    head_cost = config.vocab_size / (4 * config.hidden_size)
    ride = outputs and bool(removed) and what == "removal"
    with streams.forking(model) as (layers, head):
        run = _Run(model, layers, head, scores, frozenset(removed), ride, outputs and what == "removal", share)
        most = (len(units) if what == "removal" else 0) + 1 + ride
        for chosen in packing.batches(lines, tokens / most, head_cost):
            forks = list(units) if what == "removal" else []
            for group in _groups(forks, len(chosen[0].tokens) * len(chosen), tokens, ride):
                run.measure(chosen, group, frozenset(units))
    if np.isnan(scores.loglikelihood[scores.index[CURRENT]]).any():
        raise LaminaError(
            f"{type(model).__name__} ({model.config.name_or_path}) yields logits that are not numbers (NaN) on this "
            "calibration, before anything is removed. Try `dtype: float32` or `bfloat16` under its models entry; if "
            "that does not help, its weights are damaged."
        )
    return scores


def _groups(units: list[str], batch_tokens: int, tokens: int, ride: bool) -> list[list[str]]:
    """Split the candidates so that one line with all its streams stays under the budget.

    Neighbours stay together: a group then shares the prefix before its first unit.
    """
    most = max(1, tokens // batch_tokens - 1 - ride)
    count = max(1, -(-len(units) // most))
    size = max(1, -(-len(units) // count))
    return [units[i : i + size] for i in range(0, len(units), size)] or [[]]


class _Run:
    """What stays the same from batch to batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Sequence[ForkingLayer],
        head: SelectingHead,
        scores: Scores,
        removed: frozenset[str],
        ride: bool,
        outputs: bool,
        own_mask: bool,
    ) -> None:
        self.model, self.layers, self.head, self.scores = model, layers, head, scores
        self.removed, self.ride, self.outputs, self.own_mask = removed, ride, outputs, own_mask
        self.windows = streams.windows(model)

    def measure(self, lines: tuple[Line, ...], group: list[str], observed: frozenset[str]) -> None:
        """One forward pass; on a GPU out of memory, halves until it fits."""
        try:
            self._forward(lines, group, observed)
        except torch.cuda.OutOfMemoryError:
            if len(lines) == 1 and len(group) <= 1:
                raise
            torch.cuda.empty_cache()
            halves = (lines[::2], lines[1::2]) if len(lines) > 1 else (lines,)
            parts = (group,) if len(lines) > 1 else (group[::2], group[1::2])
            for half in halves:
                for part in parts:
                    self.measure(half, part, observed)

    def _forward(self, lines: tuple[Line, ...], group: list[str], observed: frozenset[str]) -> None:
        batch = packing.collate(lines, self.model.device)
        state = Streams(batch, frozenset(group), observed, self.removed, self.ride, self.windows, self.own_mask)
        state.observe = lambda unit, before, after: self.scores.observe(batch, unit, before, after)
        for layer in self.layers:
            layer.streams = state
        wanted = [(number, at) for number, line in enumerate(lines) for at in packing.scored_positions(line)]
        line_of = torch.tensor([number for number, _ in wanted], device=batch.tokens.device)
        position = torch.tensor([at for _, at in wanted], device=batch.tokens.device)
        self.head.choose = lambda hidden: _select(hidden, line_of, position, len(lines))
        mask = None if self.own_mask else (batch.segments >= 0).long()
        positions = batch.positions if self.own_mask else None
        output = self.model(input_ids=batch.tokens, position_ids=positions, attention_mask=mask, use_cache=False)
        logits = output.logits.reshape(len(state.names), len(wanted), -1)
        base = None
        if self.outputs:
            base = state.names.index(BASE) if BASE in state.names else 0
        self.scores.score(batch, state.names, logits, base)


def _select(hidden: torch.Tensor, line_of: torch.Tensor, position: torch.Tensor, lines: int) -> torch.Tensor:
    """(streams · lines, T, C) to (1, streams · positions, C), streams in order."""
    split = hidden.unflatten(0, (-1, lines))
    return split[:, line_of, position].flatten(0, 1)[None]


def layer_count(model: PreTrainedModel) -> int:
    """L, counted in the loaded model."""
    return len(layers_of(model))

"""The ablation engine: every unit's removal measured on a calibration, for a fraction of one evaluation per unit."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.errors import LaminaError
from lamina.models.structure import layers_of
from lamina.models.surgery import parse
from lamina.sweep import forking, packing
from lamina.sweep.forking import BASE, CURRENT, ForkingLayer, SelectingHead, Streams
from lamina.sweep.packing import Line
from lamina.sweep.scores import Scores

Pass = Literal["removal", "stream"]

_logger = logging.getLogger(__name__)


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
    with opened(model, samples, units, removed, what, tokens, outputs) as session:
        session.measure(range(len(samples)), units)
    return session.scores


@contextmanager
def opened(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str] = (),
    what: Pass = "removal",
    tokens: int = 16384,
    outputs: bool = True,
) -> Iterator["Session"]:
    """A session that measures some of `units` on some of `samples`, as often as a budget asks; see `sweep`."""
    with forking.forking(model) as (layers, head):
        yield Session(model, layers, head, samples, units, removed, what, tokens, outputs)


def groups(units: list[str], batch_tokens: int, tokens: int, ride: bool) -> list[list[str]]:
    """Split the candidates so that one line with all its streams stays under the budget, at the least cost.

    A group repeats the current model's pass (and the unpruned one's, if it rides along); the forked streams cost the
    same in any group. So the cheapest split has the fewest groups: k of them add (k - 1)·(L + L·ride) layer-tokens per
    token of the line, and it does not matter which unit is in which. They are made as even as possible, since the
    widest group sets the memory.
    """
    most = max(1, tokens // batch_tokens - 1 - ride)
    count = max(1, -(-len(units) // most))
    size, larger = divmod(len(units), count)
    ends = np.cumsum([size + (number < larger) for number in range(count)])
    return [units[end - size - (number < larger) : end] for number, end in enumerate(ends)]


class Session:
    """A wrapped model and what was measured on it so far.

    `scores` holds the numbers. `layer_tokens` counts the work done: one token through one layer, padding included.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Sequence[ForkingLayer],
        head: SelectingHead,
        samples: Sequence[Sample],
        units: Sequence[str],
        removed: Sequence[str],
        what: Pass,
        tokens: int,
        outputs: bool,
    ) -> None:
        self.model, self.layers, self.head = model, layers, head
        self.removed, self.what, self.tokens = frozenset(removed), what, tokens
        self.outputs = outputs and what == "removal"
        self.ride = self.outputs and bool(removed)
        self.own_mask = not forking.uses_alibi(model)
        if not self.own_mask:
            _logger.warning(
                "%s has ALiBi positions, which count places in the row: one row per choice, contexts are not shared.",
                type(model).__name__,
            )
        self.windows = forking.windows(model)
        self.scores = Scores([CURRENT, *units], samples)
        self.layer_tokens = 0
        self._lines = [packing.pack(number, sample, self.own_mask) for number, sample in enumerate(samples)]
        config = model.config.get_text_config()
        self._head_cost = config.vocab_size / (4 * config.hidden_size)

    @torch.inference_mode()
    def measure(self, numbers: Iterable[int], units: Sequence[str], current: bool = True) -> None:
        """Measure the removal of each of `units` on the samples with these numbers.

        The current model itself is measured too, unless `current` is False: its stream then ends where the last unit
        has forked off. (Where outputs are compared it goes on, since they are compared with it.)
        """
        lines = [line for number in numbers for line in self._lines[number]]
        removing = self.what == "removal"
        most = (len(units) if removing else 0) + 1 + self.ride
        for chosen in packing.batches(lines, self.tokens / most, self._head_cost):
            width = len(chosen[0].tokens) * len(chosen)
            for group in groups(list(units), width, self.tokens, self.ride) if removing else [[]]:
                last = None if current or self.outputs or not group else max(parse(unit)[0] for unit in group)
                self._pass(chosen, group, frozenset(group if removing else units), last)
        model_itself = self.scores.index[CURRENT]
        if np.isnan(self.scores.loglikelihood[model_itself][self.scores.rows_seen(model_itself)]).any():
            raise LaminaError(
                f"{type(self.model).__name__} ({self.model.config.name_or_path}) yields logits that are not numbers "
                "(NaN) on this calibration, before anything is removed. Try `dtype: float32` or `bfloat16` under its "
                "models entry; if that does not help, its weights are damaged."
            )

    def _pass(self, lines: tuple[Line, ...], group: list[str], observed: frozenset[str], last: int | None) -> None:
        """One forward pass; on a GPU out of memory, halves until it fits."""
        try:
            self._forward(lines, group, observed, last)
        except torch.cuda.OutOfMemoryError:
            if len(lines) == 1 and len(group) <= 1:
                raise
            torch.cuda.empty_cache()
            halves = (lines[::2], lines[1::2]) if len(lines) > 1 else (lines,)
            parts = (group,) if len(lines) > 1 else (group[::2], group[1::2])
            for half in halves:
                for part in parts:
                    self._pass(half, part, observed & frozenset(part) if group else observed, last)

    def _forward(self, lines: tuple[Line, ...], group: list[str], observed: frozenset[str], last: int | None) -> None:
        batch = packing.collate(lines, self.model.device)
        state = Streams(batch, frozenset(group), observed, self.removed, self.ride, self.windows, self.own_mask)
        state.last = last
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
        self.layer_tokens += state.layer_tokens
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

"""A wrapped model that measures candidates on samples, many in one pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import candidates, forking, packing, readings
from lamina.engine.batches import halved
from lamina.engine.budgets import LOGITS
from lamina.engine.candidates import CURRENT, Candidate, Observation
from lamina.engine.forking import ForkingLayer, SelectingHead, Streams
from lamina.engine.packing import Batch, Line, Places
from lamina.engine.scores import Name, Scores
from lamina.models.boundary import check_patches
from lamina.models.check import not_numbers
from lamina.models.structure import family_of, text_config
from lamina.models.surgery import check_removal
from lamina.models.units import parse
from lamina.models.workload import done
from lamina.store.unfinished import Progress

Pass = Literal["removal", "stream"]
Part = tuple[tuple[Line, ...], Mapping[Name, Candidate], Mapping[Name, Observation]]
"""Lines that a pass runs, the candidates that it scores, and what it observes."""


def _head_input(rows: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
    """What the head is given in the place of the streams of a pass, (1, rows, C)."""
    return rows


def _look_away(number: int, before: torch.Tensor, after: torch.Tensor) -> None:
    """Observe nothing."""


def groups(names: list[Name], batch_tokens: int, tokens: int, carried: int) -> list[list[Name]]:
    """Split candidates so that one line with all its streams stays under the budget, at the least cost.

    Every group has the same `carried` streams beside its own, so the fewest groups cost least. They are as even as
    possible, since the widest one sets the memory.
    """
    most = max(1, tokens // batch_tokens - carried)
    count = max(1, -(-len(names) // most))
    size, larger = divmod(len(names), count)
    ends = np.cumsum([size + (number < larger) for number in range(count)])
    return [names[end - size - (number < larger) : end] for number, end in enumerate(ends)]


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
        tokens: int,
        outputs: bool,
        check_halves: Callable[["Session"], None],
    ) -> None:
        """`check_halves` is called before a layer is measured without its attention or its MLP."""
        self.model, self.layers, self.head = model, layers, head
        self.tokens, self.outputs = tokens, outputs
        self.scores = Scores(samples)
        self.layer_tokens = 0
        self.windows, self.causal = forking.windows(model), forking.causal_alone(model)
        self.fixed, self.mixed = False, True
        config = text_config(model)
        self._vocabulary = int(config.vocab_size)
        self._head_cost = config.vocab_size / (4 * config.hidden_size)
        # Whether the head gives the model's logits without the layers; None until it is tried.
        self._head_runs_alone: bool | None = None
        self._halves_are_all = not family_of(model).stream_norm
        self._check_halves, self._checked = check_halves, set[Candidate]()

    @torch.inference_mode()
    def share(self, contexts: bool, fixed: bool = False, mixed: bool = True) -> None:
        """Let the rows of a sample share their context, under masks of our own, or run each under the model's masks.

        `fixed` keeps the size of the batch the same around the layers, for code that reshapes their outputs. Without
        `mixed` a batch has lines of one length and no padding, for code that reads the longest length.
        """
        samples, model = self.scores.samples, self.model
        self.windows, self.fixed, self.mixed = self.windows if contexts else None, fixed, mixed
        self._lines = [
            packing.pack(number, sample, contexts) for number, sample in enumerate(samples)
        ]
        # Each wrapper learns the inputs and outputs of its layer from batches of different sizes.
        token, places = samples[0].sequence()[0], torch.arange(3, device=model.device)
        for layer in self.layers:
            layer.sizes.clear()
        for size in (2, 3):
            ids = torch.full((size, 3), token, device=model.device)
            # As in a pass: a line that is shorter than the longest makes the model build its masks.
            real = (
                None
                if contexts
                else torch.cat([torch.ones_like(ids)[:, :2], places[:size, None].clamp(max=1)], 1)
            )
            self._run(ids, places.expand(size, 3) if contexts else None, real)

    def _run(
        self, ids: torch.Tensor | None, positions: torch.Tensor | None, real: torch.Tensor | None
    ) -> torch.Tensor:
        options = {} if positions is None else {"position_ids": positions}
        logits: torch.Tensor = self.model(
            input_ids=ids, attention_mask=real, use_cache=False, **options
        ).logits
        return logits

    def sweep(
        self,
        units: Sequence[str],
        removed: Sequence[str] = (),
        pass_: Pass = "removal",
        progress: Progress | None = None,
    ) -> None:
        """Measure the model without `removed`, and in a removal pass without one more of `units`, on all samples."""
        current, parallel = Candidate(frozenset(removed)), forking.parallel(self.layers)
        wanted, observed = candidates.swept(current, units, parallel, pass_ == "removal")
        self.measure(range(len(self.scores.samples)), wanted, observed, progress)

    @torch.inference_mode()
    def measure(
        self,
        numbers: Iterable[int],
        wanted: Mapping[Name, Candidate],
        observed: Mapping[Name, Observation] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Score the candidates in `wanted` on the samples with these numbers, and make the observations in `observed`.

        The results stand in `scores` under the given names. An observation is made in the pass of the candidate with
        its name, else in the first one. `progress` has the batches that a killed process measured by the same call.

        Raises LaminaError if the model cannot be without a candidate's units, if patches do not fit, or if the logits
        of the candidate CURRENT are not numbers.
        """
        observed = observed or {}
        for candidate in [*wanted.values(), *(seen.after for seen in observed.values())]:
            self._check(candidate)
        self.scores.add([*wanted, *observed])
        lines = [line for number in numbers for line in self._lines[number]]
        carried = {seen.model for seen in observed.values()} | (
            {Candidate()} if self.outputs else set()
        )
        forks = [name for name, candidate in wanted.items() if candidate not in carried]
        once = [name for name in wanted if wanted[name] in carried]
        most = len(forks) + len(carried)
        batches = list(
            packing.batches(lines, self.tokens / max(1, most), self._head_cost, self.mixed)
        )
        for batch in resumable(batches, self.scores, progress):
            width = len(batch[0].tokens) * len(batch)
            for number, group in enumerate(groups(forks, width, self.tokens, len(carried))):
                names = group if number else [*once, *group]
                whole: Part = (batch, *_part(names, wanted, observed, number == 0))
                halved(lambda part: self._forward(*part), whole, _halves)
        if CURRENT in wanted and self.scores.not_numbers(CURRENT):
            raise not_numbers(self.model)

    def _check(self, candidate: Candidate) -> None:
        """Refuse a candidate that could not be materialised."""
        if candidate not in self._checked:
            units = sorted(candidate.removed)
            if units:
                with forking.unwrapped(self.model, self.layers, self.head):
                    check_removal(self.model, units)
            if any(parse(unit)[1] in ("attention", "mlp") for unit in units):
                self._check_halves(self)
            if candidate.patches:
                check_patches(self.model, units, candidate.patches)
            self._checked.add(candidate)

    def _forward(
        self,
        lines: tuple[Line, ...],
        wanted: Mapping[Name, Candidate],
        observed: Mapping[Name, Observation],
    ) -> None:
        watched, seen = list(observed), dict[Name, torch.Tensor]()

        def observe(number: int, before: torch.Tensor, after: torch.Tensor) -> None:
            seen[watched[number]] = readings.moved(batch, before.flatten(2), after.flatten(2))

        batch = packing.collate(lines, self.model.device, self.mixed)
        models = candidates.carried(wanted.values(), self.outputs)
        places = packing.places(lines, self.scores.offsets)
        parts, leaves = self.logit_parts(batch, places, models, list(observed.values()), observe)
        named = dict(zip(wanted, leaves, strict=False))
        base = leaves[-1] if self.outputs else None
        self.scores.take(batch, places, readings.read(batch, places, parts, named, seen, base))

    def logits(
        self, batch: Batch, places: Places, wanted: Sequence[Candidate]
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Run one forward pass and return logits (streams, places, V), and the stream of each candidate."""
        parts, leaves = self.logit_parts(batch, places, wanted)
        return torch.cat(list(parts), dim=1), leaves

    def logit_parts(
        self,
        batch: Batch,
        places: Places,
        wanted: Sequence[Candidate],
        observed: Sequence[Observation] = (),
        observe: Callable[[int, torch.Tensor, torch.Tensor], None] = _look_away,
    ) -> tuple[Iterator[torch.Tensor], tuple[int, ...]]:
        """Run one forward pass; give its logits some places at a time, and the stream of each candidate.

        A part is (streams, some places, V), in the order of the places, and has at most `LOGITS` numbers or one place.
        """
        tree = candidates.grow(wanted, observed, len(self.layers), self._halves_are_all)
        copies = tree.width if self.fixed else 1
        state = Streams(batch, tree, self.windows, self.causal, observe, copies)
        streams = max(1 + max(tree.leaves), copies)
        most_places = len(places.line)
        if self._head_runs_alone is not False:
            most_places = max(1, LOGITS // (streams * self._vocabulary))
        line_of, position = torch.from_numpy(np.stack([places.line, places.position])).to(
            batch.tokens.device
        )
        chosen: list[torch.Tensor] = []

        def choose(hidden: torch.Tensor) -> torch.Tensor:
            by_stream = hidden.to(position.device).unflatten(0, (streams, -1))
            scored = by_stream[:, line_of, position]
            if scored.shape[1] > most_places:
                # The rest follows in parts; one place of each stream shows that they are right.
                chosen.append(scored)
                scored = scored[:, :1]
            return scored.flatten(0, 1)[None]

        logits = self._passed(state, choose).unflatten(1, (streams, -1))[0]
        self.layer_tokens += state.layer_tokens
        if not chosen:
            return iter([logits]), tree.leaves
        if self._head_runs_alone is None:
            [first] = self._headed(chosen[0][:, :1], 1)
            # The same product of the same numbers: what differs is no rounding.
            self._head_runs_alone = torch.allclose(first, logits, 1e-3, 1e-3, equal_nan=True)
        if not self._head_runs_alone:
            return self.logit_parts(batch, places, wanted, observed, observe)
        return self._headed(chosen.pop(), most_places), tree.leaves

    def _headed(self, hidden: torch.Tensor, most_places: int) -> Iterator[torch.Tensor]:
        """The logits of what enters the head (streams, places, C), so many places at a time.

        The model itself runs, for whatever it does to the logits, on one token that passes all layers by.
        """
        token = self.scores.samples[0].sequence()[:1]
        line = Line(0, token, (0,), (0,), (), ())
        batch = packing.collate((line,), self.model.device, self.mixed)
        no_layers = Candidate(frozenset(map(str, range(len(self.layers)))))
        tree = candidates.grow([no_layers], [], len(self.layers), True)
        state = Streams(batch, tree, self.windows, self.causal, _look_away)
        for part in hidden.split(most_places, dim=1):
            logits = self._passed(state, partial(_head_input, part.flatten(0, 1)[None]))
            yield logits.unflatten(1, part.shape[:2])[0]

    def _passed(
        self, state: Streams, choose: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Run the model with the streams of a pass; `choose` makes what the head is given, (1, rows, C)."""
        batch = state.batch
        mask = None if self.windows is not None else (batch.segments >= 0).long()
        positions = batch.positions if self.windows is not None else None
        repeated = [
            None if rows is None else rows.repeat(state.copies, 1)
            for rows in (batch.tokens, positions, mask)
        ]
        self.head.choose = choose
        try:
            for layer in self.layers:
                layer.state = state
            return self._run(*repeated)
        finally:
            for layer in self.layers:
                layer.state = None
            self.head.choose = lambda hidden: hidden


def _part(
    names: Sequence[Name],
    wanted: Mapping[Name, Candidate],
    observed: Mapping[Name, Observation],
    first: bool,
) -> tuple[dict[Name, Candidate], dict[Name, Observation]]:
    """Some of the candidates, with the observations of their names; the first part also takes all other ones."""
    chosen = {name: wanted[name] for name in names}
    return chosen, {
        name: seen
        for name, seen in observed.items()
        if name in chosen or (first and name not in wanted)
    }


def _halves(whole: Part) -> list[Part]:
    """A pass as two, of half the lines each, or of half the candidates where there is one line."""
    lines, wanted, observed = whole
    if len(lines) > 1:
        return [(half, wanted, observed) for half in (lines[::2], lines[1::2])]
    names = list(wanted)
    parts = [names[::2], names[1::2]] if len(names) > 1 else []
    return [
        (lines, *_part(part, wanted, observed, number == 0)) for number, part in enumerate(parts)
    ]


def resumable(
    batches: Sequence[tuple[Line, ...]], scores: Scores, progress: Progress | None
) -> Iterator[tuple[Line, ...]]:
    """The batches that are left, one after the other; `scores` hold the results of the earlier batches.

    The state is saved only between batches: within a batch, sums hold a part of its candidates.
    """
    begun, before, saved = 0, done.total, progress.load() if progress else None
    if saved:
        tensors, facts = saved
        begun = int(facts["batches"])
        done.earlier += facts["layer_tokens"]
        for name, array in scores.state().items():
            array[...] = tensors[name].numpy()
    for number in range(begun, len(batches)):
        yield batches[number]
        if progress and progress.is_due():
            state = {name: torch.from_numpy(array) for name, array in scores.state().items()}
            facts = {"batches": number + 1, "layer_tokens": done.total - before}
            progress.save(state, facts)

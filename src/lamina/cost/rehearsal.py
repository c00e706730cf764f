"""The work of a search, which no formula gives: the search itself runs, on losses that are drawn."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.config.metrics import METRICS
from lamina.config.repairs import Repair
from lamina.cost.work import Tokens, alone, patch_flops, sweep_work
from lamina.engine import packing
from lamina.engine.batches import TOKENS
from lamina.engine.budgets import sums_budget
from lamina.engine.candidates import Candidate, carried, grow
from lamina.engine.moments import BATCH, turns
from lamina.engine.session import groups
from lamina.engine.taps import positions
from lamina.models.boundary import Boundary
from lamina.models.units import all_units, parse
from lamina.modules import load
from lamina.selection.looped import boundaries
from lamina.selection.plans import UnitPrices
from lamina.selection.tournament import NONE, JudgeDocuments
from lamina.selection.trials import Trials, run

SEARCHED = 100  # samples of the rehearsal, which stand for those of a calibration


@dataclass(frozen=True)
class SearchedModel:
    """What the work of a search depends on, of a model and its configuration."""

    n_layers: int
    channels: int
    tokens: int  # budget of a pass
    attention: float = 0.0  # share of a layer that its attention has, where sub-layers are removed


@dataclass
class SearchWork:
    """Layer-tokens of a search by the engine and naively, and the arithmetic of its patches, in FLOP."""

    layer_tokens: float = 0.0
    naive: float = 0.0
    patches: float = 0.0


def search_work(
    own: str,
    read: Mapping[str, Tokens],
    model: SearchedModel,
    sizes: Sequence[int],
    options: Any,
    repairs: Mapping[str, Repair],
) -> SearchWork:
    """The work of a search for sets of these sizes and of their measurement at the end.

    Nothing is measured: the engine's tree counts the models that the search asks for. Units lose random amounts, so
    that the sets that a search keeps have units in common, as with true losses.

    own: The calibration whose samples are searched on.
    read: Tokens of all calibrations that the search reads, by name.
    options: Those of the selector.
    repairs: The repairs that are in place or tried, by name.
    """
    rehearsal = Rehearsal(own, read, model, options, repairs)
    free = options.free(model.n_layers)
    units = [unit for unit in all_units(model.n_layers, options.units) if free[parse(unit)[0]]]
    strategy: Any = load(f"{options.PACKAGE}.{options.strategy}")
    if hasattr(strategy, "rehearse"):
        strategy.rehearse(rehearsal, units, sizes, options)
    else:
        trials = rehearsal.trials(rehearsal.fit_folds if options.repair else lambda _: None)
        run(trials, units, sizes, options, rehearsal.choosing, rehearsal.judging, rehearsal.lengths)
    return rehearsal.work


class Rehearsal:
    """Stands for the model and the samples of a search, and counts what they are asked for.

    Samples have numbers: those that choose come first, then those that judge, calibration by calibration.

    choosing, judging: Numbers of the samples that choose and of those that judge.
    judges: Those that judge, by calibration, with what each weighs.
    lengths: Tokens of every sample.
    """

    def __init__(
        self,
        own: str,
        read: Mapping[str, Tokens],
        model: SearchedModel,
        options: Any,
        repairs: Mapping[str, Repair],
    ) -> None:
        self.work, self.prices = SearchWork(), UnitPrices(options.units, model.attention)
        self._model, self._own, self._read, self._repairs = model, own, read, repairs
        self._outputs = METRICS[options.metric].outputs
        self._draw = np.random.default_rng(0)
        self._lost = defaultdict[str, float](self._draw.random)
        self._patches: dict[tuple[str, Boundary], Any] = {}
        self._fitted: dict[str, set[Boundary]] = {name: set() for name in repairs}

        held = min(max(1, round(SEARCHED * options.held_back)), SEARCHED - 1)
        judge = options.judge if options.judge and options.judge != own else own
        parts = [(own, SEARCHED if judge != own else SEARCHED - held)]
        parts.append((judge, SEARCHED if judge != own else held))
        parts += [(name, held) for name in options.also if name != judge]
        # Patches are fitted on samples that do not judge.
        self._seen = dict.fromkeys((*options.also, own), 1 - held / SEARCHED)
        self._seen[own] = parts[0][1] / SEARCHED

        tokens = [read[name] for name, count in parts for _ in range(count)]
        self._rows = np.array([each.rows / SEARCHED for each in tokens])
        # The length of a line of each sample, and how many such lines it stands for.
        drawn = [self._drawn_lines(read[name], count) for name, count in parts]
        self._lengths = np.concatenate(drawn)
        self._lines = np.array([len(each.lines) / SEARCHED for each in tokens])
        self._source = np.repeat([name for name, _ in parts], [count for _, count in parts])
        self.lengths = np.array([each.stream / SEARCHED for each in tokens])
        ends = np.cumsum([count for _, count in parts])
        numbers = np.split(np.arange(len(tokens)), ends[:-1])
        weights = [1.0, *(options.also[name] for name, _ in parts[2:])]
        self.choosing, self.judging = numbers[0], np.concatenate(numbers[1:])
        self.judges = JudgeDocuments(numbers[1:], weights)

    def trials(self, prepare: Any = lambda candidates: None) -> Trials:
        """Trials that ask the rehearsal; it calls `prepare` with the candidates first."""
        return Trials(self, len(self.lengths), prepare=prepare, prices=self.prices)

    def losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
        """Drawn losses (candidates, samples): what units lose together is more or less than the sum."""
        numbers, most = np.array(list(numbers)), len(candidates) + int(self._outputs)
        for source in np.unique(self._source[numbers]):
            samples = numbers[self._source[numbers] == source]
            for longest, lines in self._batches(samples, self._model.tokens / most):
                layers = self._layers(list(candidates), round(longest * max(1.0, lines)))
                self.work.layer_tokens += layers * longest * lines
        rows = float(self._rows[numbers].sum())
        self.work.naive += alone(candidates, self._model.n_layers) * rows
        sums = [sum(self._lost[unit] for unit in sorted(each.removed)) for each in candidates]
        losses = np.array(sums) * self._draw.uniform(0.5, 1.5, len(sums))
        return losses[:, None].repeat(len(numbers), axis=1)

    def _drawn_lines(self, tokens: Tokens, count: int) -> np.ndarray:
        """Lengths of so many of a calibration's lines, from the shortest to the longest, in drawn order."""
        places = (np.arange(count) + 0.5) / count
        return self._draw.permutation(np.quantile(tokens.lines, places, method="nearest"))

    def _batches(self, samples: np.ndarray, budget: float) -> Iterator[tuple[int, float]]:
        """The longest line and the number of lines of each batch, as `packing.group_lines` makes them of these samples."""
        order = samples[np.argsort(-self._lengths[samples], kind="stable")]
        longest, lines = 0, 0.0
        for sample in order.tolist():
            length, more = int(self._lengths[sample]), float(self._lines[sample])
            is_short = length < packing.SHORT * longest and longest * lines > budget / 16
            if lines and (longest * (lines + more) > budget or is_short):
                yield longest, lines
                lines = 0.0
            longest = longest if lines else length
            lines += more
        if lines:
            yield longest, lines

    def _layers(self, candidates: list[Candidate], width: int) -> int:
        """Layers that a token of a line of this width runs through, in passes as a session makes them."""
        n_carried = int(self._outputs)
        parts = groups(list(candidates), width, self._model.tokens, n_carried)
        trees = [
            grow(carried(part, self._outputs), [], self._model.n_layers, True) for part in parts
        ]
        return sum(tree.layers for tree in trees)

    def sweep(self, kind: str) -> None:
        """Count a sweep of single removals on the samples that choose."""
        share = len(self.choosing) / SEARCHED
        engine, naive = sweep_work(self._read[self._own], self._model.n_layers, 0, "removal", kind)
        self.work.layer_tokens += share * engine
        self.work.naive += share * naive

    def capture(self) -> None:
        """Count a pass for the similarities of the streams of the samples that choose."""
        budget = positions(self._model.tokens, self._model.n_layers + 1)
        tokens = self._padded(self._own, len(self.choosing) / SEARCHED, budget)
        self._both(tokens * self._model.n_layers)

    def fit(self, repair: str, runs: Collection[Boundary]) -> None:
        """Count the fit of a repair to the runs of removed units that it was not fitted to."""
        known = self._fitted[repair]
        new = set(runs) - known
        if not new:
            return
        known |= new
        # One pass collects the moments of as many runs as it has memory for.
        channels = self._model.channels
        passes = len(list(turns(sorted(new), channels, sums_budget(channels))))
        budget = positions(min(TOKENS, BATCH // channels), 2 * len(new))
        tokens, padded = 0.0, 0.0
        for name in self._repairs[repair].weights(self._own, auto=0.0):
            share = self._seen.get(name, 1.0)
            tokens += share * self._read[name].stream
            padded += self._padded(name, share, budget)
        self._both(passes * padded * max(end for _, end in new))
        self.work.patches += patch_flops(channels, tokens, new)

    def forms(self, sets: Iterable[frozenset[str]]) -> dict[frozenset[str], dict[str, Candidate]]:
        """The candidates of sets, bare and with each repair, whose fits are counted."""
        bare = {units: Candidate(units) for units in sets}
        for repair in self._repairs:
            self.fit(repair, boundaries(bare.values(), self._model.n_layers))
        forms: dict[frozenset[str], dict[str, Candidate]] = {}
        for units, candidate in bare.items():
            forms[units] = {NONE: candidate}
            runs = boundaries([candidate], self._model.n_layers)
            for repair in self._repairs:
                patches = {run: self._patch(repair, run) for run in runs}
                forms[units][repair] = Candidate(units, patches)
        return forms

    def _patch(self, repair: str, run: Boundary) -> Any:
        """What stands for the patch of a run: sets that lack the run share it, and so their streams."""
        return self._patches.setdefault((repair, run), object())

    def fit_folds(self, candidates: Sequence[Candidate]) -> None:
        """Count the fits of the repair in place of candidates; each of two folds is fitted on half of the samples."""
        for repair in self._repairs:
            self.fit(repair, boundaries(candidates, self._model.n_layers))

    def _padded(self, name: str, share: float, budget: int) -> float:
        """Tokens of a pass over a share of a calibration's samples, with the padding of its batches."""
        tokens = self._read[name]
        lengths = [length * tokens.stream / tokens.packed for length in reversed(tokens.lines)]
        padded, start = 0.0, 0
        while start < len(lengths):
            batch = lengths[start : start + max(1, int(budget / share / lengths[start]))]
            padded += batch[0] * len(batch)
            start += len(batch)
        return share * padded

    def _both(self, layer_tokens: float) -> None:
        self.work.layer_tokens += layer_tokens
        self.work.naive += layer_tokens

"""The work of a search, which no formula gives.

The search itself runs, on losses that are drawn, and what it asks for is counted.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from lamina.engine import packing
from lamina.engine.batches import TOKENS
from lamina.engine.budgets import sums_budget
from lamina.engine.candidates import Candidate, carried_models, grow_tree
from lamina.engine.moments import BATCH, split_boundaries
from lamina.engine.session import group_candidates
from lamina.engine.taps import count_positions
from lamina.models.boundary import Boundary
from lamina.models.units import all_units, parse_unit
from lamina.options.metrics import METRICS
from lamina.options.repairs import Repair
from lamina.selection.looped import candidate_boundaries
from lamina.selection.plans import UnitPrices
from lamina.selection.tournament import NONE, JudgeDocuments
from lamina.selection.trials import Trials, run_search
from lamina_workflow.cost.work import Tokens, count_layers, patch_flops, sweep_work

N_SAMPLES = 100  # of the rehearsal, which stand for those of a calibration


@dataclass(frozen=True)
class SearchedModel:
    """What the work of a search depends on, of a model and its configuration."""

    n_layers: int
    channels: int
    token_budget: int
    """Of a pass."""
    attention_share: float = 0.0
    """Of the attention in the cost of a layer, where sub-layers are removed."""


@dataclass
class SearchWork:
    """What a search computes."""

    layer_tokens: float = 0.0
    """By the engine."""
    naive_layer_tokens: float = 0.0
    patch_flops: float = 0.0
    """FLOP of its patches."""


def search_work(
    own_calibration: str,
    tokens_by_calibration: Mapping[str, Tokens],
    model: SearchedModel,
    sizes: Sequence[int],
    options: Any,
    repairs: Mapping[str, Repair],
) -> SearchWork:
    """The work of a search for sets of these sizes, and of their measurement at the end.

    Nothing is measured: the engine's tree counts the models that the search asks for. Units lose
    random amounts, so that the sets that a search keeps have units in common, as with true losses.

    own_calibration: the calibration whose samples are searched on.
    tokens_by_calibration: of all calibrations that the search reads.
    options: those of the selector.
    repairs: the repairs that are in place or tried, by name.
    """
    rehearsal = CountingRehearsal(own_calibration, tokens_by_calibration, model, options, repairs)
    is_free = options.free(model.n_layers)
    units = [
        unit for unit in all_units(model.n_layers, options.units) if is_free[parse_unit(unit)[0]]
    ]
    strategy: Any = import_module(f"{options.PACKAGE}.{options.strategy}")
    if hasattr(strategy, "rehearse"):
        strategy.rehearse(rehearsal, units, sizes, options)
    else:
        trials = rehearsal.open_trials(rehearsal.count_fold_fits if options.repair else None)
        run_search(
            trials, units, sizes, options, rehearsal.choosing, rehearsal.judging, rehearsal.lengths
        )
    return rehearsal.work


class RehearsedBatch(NamedTuple):
    """Lines of one pass."""

    longest: int
    """Tokens of the longest line."""
    n_lines: float
    """A mean, so it need not be whole."""


class RehearsedSamples:
    """Samples that stand for those of the calibrations of a search.

    They have indices: those that choose come first, then those that judge, calibration by
    calibration. Each stands for several samples of its calibration, or for a share of one.
    """

    def __init__(
        self,
        own_calibration: str,
        tokens_by_calibration: Mapping[str, Tokens],
        options: Any,
        generator: np.random.Generator,
    ) -> None:
        n_held_back = min(max(1, round(N_SAMPLES * options.held_back)), N_SAMPLES - 1)
        judge_calibration = options.judge or own_calibration
        n_choosing = N_SAMPLES if judge_calibration != own_calibration else N_SAMPLES - n_held_back
        n_judging = N_SAMPLES if judge_calibration != own_calibration else n_held_back
        also_judging = [name for name in options.also if name != judge_calibration]
        calibration_names = [own_calibration, judge_calibration, *also_judging]
        sample_counts = [n_choosing, n_judging, *[n_held_back] * len(also_judging)]

        # Patches are fitted on samples that do not judge.
        self.fitted_shares = dict.fromkeys(
            (*options.also, own_calibration), 1 - n_held_back / N_SAMPLES
        )
        self.fitted_shares[own_calibration] = n_choosing / N_SAMPLES

        self.calibrations = np.repeat(calibration_names, sample_counts)
        """Of each sample."""
        tokens_of_sample = [tokens_by_calibration[name] for name in self.calibrations.tolist()]
        self.rows = np.array([calibration.rows / N_SAMPLES for calibration in tokens_of_sample])
        """Tokens of the rows of each sample."""
        self.streams = np.array(
            [calibration.stream / N_SAMPLES for calibration in tokens_of_sample]
        )
        """Tokens of the context and right answer of each sample."""
        self.n_lines = np.array(
            [len(calibration.lines) / N_SAMPLES for calibration in tokens_of_sample]
        )
        """How many packed lines each sample stands for."""
        line_lengths = [
            _draw_lines(tokens_by_calibration[name], count, generator)
            for name, count in zip(calibration_names, sample_counts, strict=True)
        ]
        self.line_lengths = np.concatenate(line_lengths)
        """Tokens of these lines."""

        indices = np.split(np.arange(len(tokens_of_sample)), np.cumsum(sample_counts)[:-1])
        self.choosing = indices[0]
        self.judging = np.concatenate(indices[1:])
        weights = [1.0, *(options.also[name] for name in also_judging)]
        self.judges = JudgeDocuments(indices[1:], weights)

    def group_batches(
        self, sample_indices: np.ndarray, max_positions: float
    ) -> Iterator[RehearsedBatch]:
        """The batches of samples of one calibration, as `packing.group_lines` makes them."""
        length_order = np.argsort(-self.line_lengths[sample_indices], kind="stable")
        longest_line = 0
        n_lines = 0.0
        for index in sample_indices[length_order].tolist():
            line_length = int(self.line_lengths[index])
            n_more = float(self.n_lines[index])
            is_short = (
                line_length < packing.SHORT * longest_line
                and longest_line * n_lines > max_positions / 16
            )
            is_over = longest_line * (n_lines + n_more) > max_positions
            if n_lines and (is_over or is_short):
                yield RehearsedBatch(longest_line, n_lines)
                n_lines = 0.0
            if not n_lines:
                longest_line = line_length
            n_lines += n_more
        if n_lines:
            yield RehearsedBatch(longest_line, n_lines)


def _draw_lines(tokens: Tokens, count: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths of `count` of a calibration's lines, from the shortest to the longest, shuffled."""
    quantiles = (np.arange(count) + 0.5) / count
    return generator.permutation(np.quantile(tokens.lines, quantiles, method="nearest"))


class CountingRehearsal:
    """Stands for the model and the samples of a search, and counts what they are asked for.

    choosing, judging: indices of the samples that choose and of those that judge.
    judges: those that judge, by calibration, with what each weighs.
    lengths: tokens of every sample.
    """

    def __init__(
        self,
        own_calibration: str,
        tokens_by_calibration: Mapping[str, Tokens],
        model: SearchedModel,
        options: Any,
        repairs: Mapping[str, Repair],
    ) -> None:
        self.work = SearchWork()
        self.prices = UnitPrices(options.units, model.attention_share)
        self._own = own_calibration
        self._tokens_by_calibration = tokens_by_calibration
        self._model = model
        self._repairs = repairs
        self._has_outputs = METRICS[options.metric].outputs
        self._generator = np.random.default_rng(0)
        self._loss_by_unit = defaultdict[str, float](self._generator.random)
        self._patches: dict[tuple[str, Boundary], object] = {}
        self._fitted_runs: dict[str, set[Boundary]] = {name: set() for name in repairs}

        self._samples = RehearsedSamples(
            own_calibration, tokens_by_calibration, options, self._generator
        )
        self.choosing = self._samples.choosing
        self.judging = self._samples.judging
        self.judges = self._samples.judges
        self.lengths = self._samples.streams

    def open_trials(self, prepare: Callable[[Sequence[Candidate]], None] | None = None) -> Trials:
        """Trials that ask the rehearsal; `prepare` is called with the candidates first."""
        n_samples = len(self.lengths)
        if prepare is None:
            return Trials(self, n_samples, prices=self.prices)
        return Trials(self, n_samples, prepare=prepare, prices=self.prices)

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        """Drawn losses (candidates, samples).

        What units lose together is more or less than the sum.
        """
        indices = np.array(list(sample_indices))
        self._count_passes(candidates, indices)
        n_row_tokens = float(self._samples.rows[indices].sum())
        n_layers = count_layers(candidates, self._model.n_layers)
        self.work.naive_layer_tokens += n_layers * n_row_tokens

        loss_sums: list[float] = []
        for candidate in candidates:
            loss_sums.append(sum(self._loss_by_unit[unit] for unit in sorted(candidate.removed)))
        losses = np.array(loss_sums) * self._generator.uniform(0.5, 1.5, len(loss_sums))
        return losses[:, None].repeat(len(indices), axis=1)

    def _count_passes(self, candidates: Sequence[Candidate], indices: np.ndarray) -> None:
        """Count the passes that measure candidates on samples, calibration by calibration."""
        n_streams = len(candidates) + int(self._has_outputs)
        max_positions = self._model.token_budget / n_streams
        calibrations = self._samples.calibrations[indices]
        for calibration in np.unique(calibrations):
            for batch in self._samples.group_batches(
                indices[calibrations == calibration], max_positions
            ):
                batch_width = round(batch.longest * max(1.0, batch.n_lines))
                n_layers = self._count_tree_layers(candidates, batch_width)
                self.work.layer_tokens += n_layers * batch.longest * batch.n_lines

    def _count_tree_layers(self, candidates: Sequence[Candidate], width: int) -> int:
        """Layers that a token of a batch of this width runs through, in passes like a session's."""
        n_carried = int(self._has_outputs)
        n_layers = 0
        for group in group_candidates(list(candidates), width, self._model.token_budget, n_carried):
            streams = carried_models(group, self._has_outputs)
            n_layers += grow_tree(streams, [], self._model.n_layers, True).layers
        return n_layers

    def count_sweep(self, kind: str) -> None:
        """Count a sweep of single removals on the samples that choose."""
        share = len(self.choosing) / N_SAMPLES
        tokens = self._tokens_by_calibration[self._own]
        count = sweep_work(tokens, self._model.n_layers, 0, "removal", kind)
        self.work.layer_tokens += share * count.engine
        self.work.naive_layer_tokens += share * count.naive

    def count_capture(self) -> None:
        """Count a pass for the similarities of the streams of the samples that choose."""
        max_positions = count_positions(self._model.token_budget, self._model.n_layers + 1)
        n_tokens = self._count_padded_tokens(
            self._own, len(self.choosing) / N_SAMPLES, max_positions
        )
        self._count_plain_pass(n_tokens * self._model.n_layers)

    def count_fit(self, repair: str, runs: Collection[Boundary]) -> None:
        """Count the fit of a repair to the runs of removed units that it was not fitted to."""
        new_runs = set(runs) - self._fitted_runs[repair]
        if not new_runs:
            return
        self._fitted_runs[repair] |= new_runs

        # One pass collects the moments of as many runs as it has memory for.
        channels = self._model.channels
        n_passes = len(list(split_boundaries(sorted(new_runs), channels, sums_budget(channels))))
        max_positions = count_positions(min(TOKENS, BATCH // channels), 2 * len(new_runs))
        n_tokens = 0.0
        n_padded_tokens = 0.0
        for calibration in self._repairs[repair].weights(self._own, auto=0.0):
            share = self._samples.fitted_shares.get(calibration, 1.0)
            n_tokens += share * self._tokens_by_calibration[calibration].stream
            n_padded_tokens += self._count_padded_tokens(calibration, share, max_positions)
        last_layer = max(end for _, end in new_runs)
        self._count_plain_pass(n_passes * n_padded_tokens * last_layer)
        self.work.patch_flops += patch_flops(channels, n_tokens, new_runs)

    def form_candidates(
        self, sets: Iterable[frozenset[str]]
    ) -> dict[frozenset[str], dict[str, Candidate]]:
        """The candidates of sets, bare and with each repair, whose fits are counted."""
        bare_candidates = {units: Candidate(units) for units in sets}
        all_runs = candidate_boundaries(bare_candidates.values(), self._model.n_layers)
        for repair in self._repairs:
            self.count_fit(repair, all_runs)

        candidates: dict[frozenset[str], dict[str, Candidate]] = {}
        for units, bare_candidate in bare_candidates.items():
            candidates[units] = {NONE: bare_candidate}
            runs = candidate_boundaries([bare_candidate], self._model.n_layers)
            for repair in self._repairs:
                patches = {run: self._stand_in_patch(repair, run) for run in runs}
                candidates[units][repair] = Candidate(units, patches)
        return candidates

    def _stand_in_patch(self, repair: str, run: Boundary) -> Any:
        """A stand-in for the patch of a run: sets with this run share it, and so their streams."""
        return self._patches.setdefault((repair, run), object())

    def count_fold_fits(self, candidates: Sequence[Candidate]) -> None:
        """Count the fits of the repair in place; each fold is fitted on half of the samples."""
        for repair in self._repairs:
            self.count_fit(repair, candidate_boundaries(candidates, self._model.n_layers))

    def _count_padded_tokens(self, calibration: str, share: float, max_positions: int) -> float:
        """Tokens of a pass over a share of a calibration's samples, padding included."""
        tokens = self._tokens_by_calibration[calibration]
        line_lengths = [length * tokens.stream / tokens.packed for length in reversed(tokens.lines)]
        n_padded = 0.0
        first_line = 0
        while first_line < len(line_lengths):
            longest_line = line_lengths[first_line]
            n_lines = min(
                max(1, int(max_positions / share / longest_line)), len(line_lengths) - first_line
            )
            n_padded += longest_line * n_lines
            first_line += n_lines
        return share * n_padded

    def _count_plain_pass(self, layer_tokens: float) -> None:
        """Count a pass that the naive way makes as well."""
        self.work.layer_tokens += layer_tokens
        self.work.naive_layer_tokens += layer_tokens

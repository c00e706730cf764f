"""A wrapped model that measures candidates on samples, many in one pass.

A *candidate* is the model with edits. In a pass each candidate has a *stream*, and streams
split where candidates differ, so that they form a *tree*. A *line* is one row of token ids, with one
answer or several that share their context. An *observation* compares two streams at a layer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import candidates, forking, packing, readings
from lamina.engine.batches import run_in_halves
from lamina.engine.budgets import LOGIT_NUMBERS
from lamina.engine.candidates import CURRENT, Candidate, Observation
from lamina.engine.forking import ForkingLayer, Observe, PassState, SelectingHead
from lamina.engine.packing import Line, PackedBatch, ScoredTokens
from lamina.engine.scores import Name, Scores
from lamina.models.boundary import check_patches
from lamina.models.check import not_numbers
from lamina.models.structure import family_of, text_config
from lamina.models.surgery import check_editable
from lamina.models.workload import done
from lamina.store.unfinished import Progress

Pass = Literal["removal", "stream"]

MakeHeadInput = Callable[[torch.Tensor], torch.Tensor]
"""Makes the input of the head, (1, rows, C), from the streams (streams · lines, T, C)."""


class PassPlan(NamedTuple):
    """What one pass does: the lines that it runs, what it scores, and what it observes."""

    lines: tuple[Line, ...]
    candidates: Mapping[Name, Candidate]
    observations: Mapping[Name, Observation]

    def split(self) -> list["PassPlan"]:
        """Two plans of half the lines each, or of half the candidates if there is one line.

        Empty if there is only one line and one candidate.
        """
        if len(self.lines) > 1:
            return [
                self._replace(lines=self.lines[::2]),
                self._replace(lines=self.lines[1::2]),
            ]
        names = list(self.candidates)
        if len(names) < 2:
            return []
        return [self.select(names[::2], is_first=True), self.select(names[1::2], is_first=False)]

    def select(self, names: Sequence[Name], is_first: bool) -> "PassPlan":
        """The plan for some of the candidates, with the observations of the same names.

        The first selection also has the observations that belong to no candidate.
        """
        selected_candidates = {name: self.candidates[name] for name in names}
        observations: dict[Name, Observation] = {}
        for name, observation in self.observations.items():
            is_unowned = name not in self.candidates
            if name in selected_candidates or (is_first and is_unowned):
                observations[name] = observation
        return PassPlan(self.lines, selected_candidates, observations)


class Session:
    """A wrapped model and what was measured on it so far.

    `scores` holds the numbers. `layer_tokens` counts the work done: one token through one layer,
    padding included.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Sequence[ForkingLayer],
        head: SelectingHead,
        samples: Sequence[Sample],
        token_budget: int,
        outputs: bool,
        check_edits: Callable[["Session", Collection[str]], None],
    ) -> None:
        """Open a session on a wrapped model; `share` must be called before anything is measured.

        token_budget: The budget of one pass: lines × streams × length.
        outputs: Whether to compare the outputs of candidates with the base model's.
        check_edits: Called before edits are measured, to prove the session on edits of their kinds.
        """
        self.model = model
        self.layers = layers
        self.head = head
        self.token_budget = token_budget
        self.outputs = outputs
        self.scores = Scores(samples)
        self.layer_tokens = 0
        self.windows = forking.attention_windows(model)
        self.is_causal_unmasked = forking.causal_alone(model)
        self.is_batch_fixed = False
        self.mixes_lengths = True
        config = text_config(model)
        self._vocabulary = int(config.vocab_size)
        self._head_cost = config.vocab_size / (4 * config.hidden_size)
        # Whether the head gives the model's logits without the layers; None until it is tried.
        self._head_runs_alone: bool | None = None
        self._empty_is_identity = not family_of(model).stream_norm
        self._check_edits = check_edits
        self._checked: set[Candidate] = set()

    @torch.inference_mode()
    def share(self, contexts: bool, fixed: bool = False, mixed: bool = True) -> None:
        """Choose how samples run through this model's layers.

        contexts: Whether the rows of a sample share their context, under our own masks; otherwise
            each row runs under the model's masks.
        fixed: Whether the batch size must stay the same in all layers, for model code that reshapes
            their outputs.
        mixed: Whether a batch may have lines of different lengths, and padding; not for model code
            that depends on the longest length.
        """
        if not contexts:
            self.windows = None
        self.is_batch_fixed = fixed
        self.mixes_lengths = mixed
        self._lines = [
            packing.pack_sample(sample_index, sample, contexts)
            for sample_index, sample in enumerate(self.scores.samples)
        ]
        self._learn_layer_arguments(contexts)

    def _learn_layer_arguments(self, contexts: bool) -> None:
        """Run batches of different sizes, so that the wrappers record arguments and outputs."""
        for layer in self.layers:
            layer.forget_arguments()
        token_id = self.scores.samples[0].sequence()[0]
        positions = torch.arange(3, device=self.model.device)
        for n_lines in (2, 3):
            token_ids = torch.full((n_lines, 3), token_id, device=self.model.device)
            if contexts:
                self._run_model(token_ids, positions.expand(n_lines, 3), None)
                continue
            # As in a pass: a line that is shorter than the longest makes the model build its masks.
            last_is_real = positions[:n_lines, None].clamp(max=1)
            is_real = torch.cat([torch.ones_like(token_ids)[:, :2], last_is_real], 1)
            self._run_model(token_ids, None, is_real)

    def _run_model(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The model's logits."""
        options = {} if position_ids is None else {"position_ids": position_ids}
        output = self.model(
            input_ids=token_ids, attention_mask=attention_mask, use_cache=False, **options
        )
        logits: torch.Tensor = output.logits
        return logits

    def sweep(
        self,
        units: Sequence[str],
        removed: Sequence[str] = (),
        pass_: Pass = "removal",
        progress: Progress | None = None,
    ) -> None:
        """Measure the model without `removed` on all samples; see `measure`.

        A removal pass also measures it without each of `units`.
        """
        current = Candidate(frozenset(removed))
        parallel_layers = forking.find_parallel_layers(self.layers)
        candidate_by_name, observation_by_name = candidates.plan_sweep(
            current, units, parallel_layers, pass_ == "removal"
        )
        self.measure(
            range(len(self.scores.samples)), candidate_by_name, observation_by_name, progress
        )

    @torch.inference_mode()
    def measure(
        self,
        sample_indices: Iterable[int],
        candidate_by_name: Mapping[Name, Candidate],
        observation_by_name: Mapping[Name, Observation] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Score candidates on samples, and make observations; the results are in `scores`.

        An observation is made in the pass of the candidate with its name, else in the first one.

        sample_indices: Indices of the samples.
        candidate_by_name, observation_by_name: By the name of their results.
        progress: Holds the batches that a killed process measured in the same call.

        Raises LaminaError if the model cannot run with a candidate's edits, if patches do not
        fit, or if the logits of the candidate CURRENT are not numbers.
        """
        observation_by_name = observation_by_name or {}
        for candidate in candidate_by_name.values():
            self._check_candidate(candidate)
        for observation in observation_by_name.values():
            self._check_candidate(observation.after)
        self.scores.add([*candidate_by_name, *observation_by_name])

        # The models that are observed, and the one to compare with, run in every pass.
        repeated_models = {observation.model for observation in observation_by_name.values()}
        if self.outputs:
            repeated_models.add(Candidate())
        forking_names = [
            name for name in candidate_by_name if candidate_by_name[name] not in repeated_models
        ]
        carried_names = [
            name for name in candidate_by_name if candidate_by_name[name] in repeated_models
        ]

        batches = self._group_batches(sample_indices, len(forking_names) + len(repeated_models))
        for batch in resume_batches(batches, self.scores, progress):
            n_tokens = len(batch[0].tokens) * len(batch)
            plan = PassPlan(batch, candidate_by_name, observation_by_name)
            name_groups = group_candidates(
                forking_names, n_tokens, self.token_budget, len(repeated_models)
            )
            for group_number, group_names in enumerate(name_groups):
                is_first = group_number == 0
                pass_names = [*carried_names, *group_names] if is_first else group_names
                run_in_halves(self._forward, plan.select(pass_names, is_first), PassPlan.split)

        if CURRENT in candidate_by_name and self.scores.has_nan(CURRENT):
            raise not_numbers(self.model)

    def _group_batches(
        self, sample_indices: Iterable[int], n_streams: int
    ) -> list[tuple[Line, ...]]:
        """The lines of samples, in batches that fit into the budget with `n_streams` streams."""
        lines = [line for sample_index in sample_indices for line in self._lines[sample_index]]
        max_positions = self.token_budget / max(1, n_streams)
        return list(packing.group_lines(lines, max_positions, self._head_cost, self.mixes_lengths))

    def _check_candidate(self, candidate: Candidate) -> None:
        """Refuse a candidate that could not be materialised."""
        if candidate in self._checked:
            return
        edits = sorted(candidate.edits)
        if edits:
            with forking.unwrap_layers(self.model, self.layers, self.head):
                check_editable(self.model, edits)
            self._check_edits(self, edits)
        if candidate.patches:
            check_patches(self.model, edits, candidate.patches)
        self._checked.add(candidate)

    def _forward(self, plan: PassPlan) -> None:
        """Run one pass and store its readings."""
        batch = packing.collate_lines(plan.lines, self.model.device, self.mixes_lengths)
        scored = packing.locate_scored_tokens(plan.lines, self.scores.offsets)
        observation_names = list(plan.observations)
        stream_distances: dict[Name, torch.Tensor] = {}

        def compare(observation_number: int, before: torch.Tensor, after: torch.Tensor) -> None:
            name = observation_names[observation_number]
            stream_distances[name] = readings.compare_streams(
                batch, before.flatten(2), after.flatten(2)
            )

        carried_models = candidates.carried_models(plan.candidates.values(), self.outputs)
        logit_parts, leaves = self.compute_logit_parts(
            batch, scored, carried_models, list(plan.observations.values()), compare
        )
        # If outputs are compared, the base model comes last; it has no name.
        stream_by_name = dict(zip(plan.candidates, leaves, strict=False))
        base_stream = leaves[-1] if self.outputs else None
        pass_readings = readings.read_logits(
            batch, scored, logit_parts, stream_by_name, stream_distances, base_stream
        )
        self.scores.store_readings(batch, scored, pass_readings)

    def compute_logits(
        self, batch: PackedBatch, scored: ScoredTokens, pass_candidates: Sequence[Candidate]
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        """The logits (streams, positions, V) of one pass, and the stream of each candidate."""
        parts, leaves = self.compute_logit_parts(batch, scored, pass_candidates)
        return torch.cat(list(parts), dim=1), leaves

    def compute_logit_parts(
        self,
        batch: PackedBatch,
        scored: ScoredTokens,
        pass_candidates: Sequence[Candidate],
        pass_observations: Sequence[Observation] = (),
        observe: Observe = forking.observe_nothing,
    ) -> tuple[Iterator[torch.Tensor], tuple[int, ...]]:
        """Run one pass; return its logits in parts, and the stream of each candidate.

        A part is (streams, some positions, V), in the order of the positions, and has at most
        `LOGIT_NUMBERS` numbers or one position.
        """
        tree = candidates.grow_tree(
            pass_candidates, pass_observations, len(self.layers), self._empty_is_identity
        )
        n_copies = tree.width if self.is_batch_fixed else 1
        n_streams = max(1 + max(tree.leaves), n_copies)
        max_positions = len(scored.position_lines)
        if self._head_runs_alone is not False:
            max_positions = max(1, LOGIT_NUMBERS // (n_streams * self._vocabulary))

        pass_state = PassState(
            batch,
            tree,
            self.layers,
            self.windows,
            self.is_causal_unmasked,
            observe,
            n_copies,
        )
        selection = _ScoredSelection(batch, scored, n_streams, max_positions)
        logits = self._run_pass(pass_state, selection.select)
        logits = logits.unflatten(1, (n_streams, -1))[0]  # (streams, positions, V)
        self.layer_tokens += pass_state.layer_tokens

        withheld = selection.withheld
        if withheld is None:
            return iter([logits]), tree.leaves
        if self._head_runs_alone is None:
            first_position = next(self._apply_head(withheld[:, :1], 1))
            # Both are the same product of the same numbers, so a difference would not be rounding.
            self._head_runs_alone = torch.allclose(
                first_position, logits, 1e-3, 1e-3, equal_nan=True
            )
        if not self._head_runs_alone:
            # The pass runs once more, with all positions. This happens once in a session.
            return self.compute_logit_parts(
                batch, scored, pass_candidates, pass_observations, observe
            )
        return self._apply_head(withheld, max_positions), tree.leaves

    def _apply_head(self, hidden: torch.Tensor, max_positions: int) -> Iterator[torch.Tensor]:
        """The logits of head inputs (streams, positions, C), `max_positions` positions at a time.

        The whole model runs on one token that skips all layers, so that it also applies whatever it
        does to its logits.
        """
        token = self.scores.samples[0].sequence()[:1]
        line = Line(0, token, (0,), (0,), (), ())
        batch = packing.collate_lines((line,), self.model.device, self.mixes_lengths)
        layer_units = [str(layer) for layer in range(len(self.layers))]
        no_layers = Candidate(frozenset(layer_units))
        tree = candidates.grow_tree([no_layers], [], len(self.layers), empty_is_identity=True)
        state = PassState(batch, tree, self.layers, self.windows, self.is_causal_unmasked)
        for part in hidden.split(max_positions, dim=1):
            head_input = part.flatten(0, 1)[None]  # (1, streams · positions, C)
            logits = self._run_pass(state, partial(_ignore_streams, head_input))
            yield logits.unflatten(1, part.shape[:2])[0]

    def _run_pass(self, state: PassState, make_head_input: MakeHeadInput) -> torch.Tensor:
        """Run the model with its wrappers in a pass, and return the logits."""
        batch = state.batch
        token_ids = batch.token_ids.repeat(state.n_copies, 1)
        position_ids = None
        attention_mask = None
        if self.windows is None:
            attention_mask = (batch.segments >= 0).long().repeat(state.n_copies, 1)
        else:
            position_ids = batch.position_ids.repeat(state.n_copies, 1)

        self.head.make_input = make_head_input
        try:
            for layer in self.layers:
                layer.pass_state = state
            return self._run_model(token_ids, position_ids, attention_mask)
        finally:
            for layer in self.layers:
                layer.pass_state = None
            self.head.make_input = forking.pass_on


class _ScoredSelection:
    """Selects the scored positions of the streams of a pass, for the head.

    If there are more than `max_positions`, the head gets one position per stream, which shows
    whether it can run alone. `withheld` then holds all positions for later, (streams, positions,
    C).
    """

    def __init__(
        self, batch: PackedBatch, scored: ScoredTokens, n_streams: int, max_positions: int
    ) -> None:
        indices = np.stack([scored.position_lines, scored.position_indices])
        self.lines, self.indices = torch.from_numpy(indices).to(batch.token_ids.device)
        self.n_streams = n_streams
        self.max_positions = max_positions
        self.withheld: torch.Tensor | None = None

    def select(self, hidden: torch.Tensor) -> torch.Tensor:
        """(streams · lines, T, C) to (1, streams · positions, C)."""
        # (streams, lines, T, C), then (streams, positions, C)
        streams = hidden.to(self.indices.device).unflatten(0, (self.n_streams, -1))
        selected = streams[:, self.lines, self.indices]
        if selected.shape[1] > self.max_positions:
            self.withheld = selected
            selected = selected[:, :1]
        return selected.flatten(0, 1)[None]


def _ignore_streams(head_input: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return the given input of the head, whatever the streams are."""
    return head_input


def group_candidates(
    names: list[Name], batch_tokens: int, token_budget: int, n_carried: int
) -> list[list[Name]]:
    """Split candidates into the fewest groups whose batch of streams stays within the budget.

    Every group also runs the same carried streams, so the fewest groups cost least. Group sizes
    differ by at most one, because the largest group determines the memory.

    batch_tokens: Token positions of the batch, padding included.
    """
    max_size = max(1, token_budget // batch_tokens - n_carried)
    n_groups = max(1, -(-len(names) // max_size))
    index_groups = np.array_split(range(len(names)), n_groups)
    return [[names[index] for index in indices] for indices in index_groups]


def resume_batches(
    batches: Sequence[tuple[Line, ...]], scores: Scores, progress: Progress | None
) -> Iterator[tuple[Line, ...]]:
    """Yield the batches that are left; `scores` gets the stored results of the earlier ones.

    The state is saved only between batches: within a batch, only some candidates are summed.
    """
    n_done = 0
    tokens_before = done.total
    saved = progress.load() if progress else None
    if saved:
        tensors, facts = saved
        n_done = int(facts["batches"])
        done.earlier += facts["layer_tokens"]
        for name, array in scores.state().items():
            array[...] = tensors[name].numpy()

    for batch_number in range(n_done, len(batches)):
        yield batches[batch_number]
        if progress and progress.is_due():
            state = {name: torch.from_numpy(array) for name, array in scores.state().items()}
            layer_tokens = done.total - tokens_before
            progress.save(state, {"batches": batch_number + 1, "layer_tokens": layer_tokens})

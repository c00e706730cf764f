"""Takes the log-likelihoods of many variants from one pass of the engine.

Rows with the same context run that context once. Variants that only have units removed, or linear
maps of the stream in their place, run the layers before their first difference once. A variant with
other weights is measured alone.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import memory, sweep
from lamina.engine.batches import TOKENS
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.evaluation.assembly import Parts
from lamina.models.boundary import assert_finite
from lamina.models.checkpoint import stated_context
from lamina.models.units import parse_unit
from lamina.store.unfinished import Progress

Scored = tuple[tuple[int, ...], tuple[int, ...]]
"""A context and the continuation whose tokens are scored, as token ids."""

LINE = 512  # tokens of a line that may hold any number of rows

_logger = logging.getLogger(__name__)


class Likelihood(NamedTuple):
    """The log-likelihood of a continuation."""

    nats: float
    likeliest: bool
    """Whether each of its tokens was the likeliest."""


def candidate_of(model: PreTrainedModel, parts: Parts) -> Candidate | None:
    """A variant of `model` as a candidate of a pass.

    None if its weights or layers are not those of the model, or a repair is not a linear map.
    """
    if parts.plan is None:
        return Candidate()
    if parts.adapter is not None:
        return None
    if parts.plan.get("replacements"):  # layers of other models
        return None
    patches = {}
    for boundary, fitted in (parts.patches or {}).items():
        patch = fitted.as_patch()
        if patch is None:
            return None
        patches[boundary] = patch.to(model.device, model.dtype)
    return Candidate(frozenset(parts.plan["units"]), patches)


class Together:
    """Variants of `model` that are measured in one pass.

    The pass runs when the likelihoods of one variant are first asked for.

    candidates: The variants, by name.
    progress: Maps a hash of some rows to the file that keeps their pass until it is finished.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        candidates: Mapping[str, Candidate],
        progress: Callable[[str], Progress | None] = lambda rows_hash: None,
    ) -> None:
        self.model = model
        self._progress = progress
        # If one pass cannot hold all of them, neighbours that agree in many layers share a pass.
        names = sorted(candidates, key=lambda name: sorted(map(parse_unit, candidates[name].edits)))
        self.candidates = {name: candidates[name] for name in names}
        self._measured: dict[tuple[Scored, ...], dict[str, list[Likelihood]]] = {}
        self._engine_refused = False

    def likelihoods(self, name: str, rows: Sequence[Scored], stage: str) -> list[Likelihood] | None:
        """The likelihood of each row on the variant called `name`.

        None for a variant that is measured alone: it has other weights, or the engine cannot run
        its family correctly.

        stage: What messages call this work.

        Raises LaminaError if the variant gives NaN.
        """
        if name not in self.candidates or self._engine_refused or not rows:
            return None
        key = tuple(rows)
        if key not in self._measured:
            try:
                self._measured[key] = self._measure(key)
            except LaminaError as refusal:
                _logger.warning("Each variant is measured alone. %s", refusal)
                self._engine_refused = True
                return None
        likelihoods = self._measured[key][name]
        nats = torch.tensor([likelihood.nats for likelihood in likelihoods], dtype=self.model.dtype)
        assert_finite(nats, name, stage)
        return likelihoods

    def _measure(self, rows: Sequence[Scored]) -> dict[str, list[Likelihood]]:
        """The likelihoods of the rows on every candidate, by name."""
        samples = pack_shared_rows(rows, stated_context(self.model.config.to_dict()))
        budget = memory.choose_token_budget("auto", self.model, samples, len(self.candidates))
        rows_hash = hashlib.sha256(repr((rows, list(self.candidates))).encode()).hexdigest()
        progress = self._progress(rows_hash)
        with sweep.open_session(self.model, samples, min(TOKENS, budget), outputs=False) as session:
            session.measure(range(len(samples)), self.candidates, progress=progress)

        scores = session.scores
        likelihoods: dict[str, list[Likelihood]] = {}
        for name in self.candidates:
            index = scores.index[name]
            measured = zip(scores.loglikelihood[index], scores.hits[index], rows, strict=True)
            likelihoods[name] = [
                Likelihood(float(nats), bool(n_hits == len(continuation)))
                for nats, n_hits, (_, continuation) in measured
            ]
        return likelihoods


def pack_shared_rows(rows: Sequence[Scored], limit: int | None = None) -> list[Sample]:
    """Rows in order, as samples whose rows share their contexts.

    Rows that follow each other are one sample if they share enough of their contexts. Two contexts
    may also differ near their end if their continuation is the same, as in WinoGrande.

    limit: The most tokens that the model reads at once.
    """
    groups: list[list[Scored]] = []
    line_length = 0  # of the last group, with what its rows share once
    for row in rows:
        context_ids, continuation = row
        row_length = len(context_ids) + len(continuation)
        n_shared = _count_shared(groups[-1][0], row) if groups else 0
        n_new = row_length - n_shared
        # A token that begins all texts does not count as context.
        is_context = n_shared > 0 and 2 * n_shared >= len(continuation)
        # Attention cost grows with the square of a line's length.
        if is_context and line_length + n_new <= max(LINE, 2 * row_length):
            groups[-1].append(row)
            line_length += n_new
        else:
            groups.append([row])
            line_length = row_length
    return [_make_sample(index, group, limit) for index, group in enumerate(groups)]


def _make_sample(index: int, group: Sequence[Scored], limit: int | None) -> Sample:
    rows = [
        Row(context_ids, continuation, len(continuation)) for context_ids, continuation in group
    ]
    return Sample(index, "choices", 0, tuple(rows), "", limit=limit)


def _count_shared(first: Scored, second: Scored) -> int:
    """The number of tokens that two rows can share."""
    first_context, first_continuation = first
    second_context, second_continuation = second
    if first_context == second_context:
        return len(first_context)
    if first_continuation != second_continuation:
        return 0
    n_same = 0
    for first_id, second_id in zip(first_context, second_context, strict=False):
        if first_id != second_id:
            break
        n_same += 1
    if n_same == min(len(first_context), len(second_context)):
        return 0  # one context is a prefix of the other
    longest = max(len(first_context), len(second_context))
    return n_same if 2 * n_same >= longest else 0

"""Log-likelihoods of many variants from one pass of the engine, which shares contexts and layers.

Rows with the same context run that context once. Some variants are the base model without some units, with linear maps
of the stream in the place of removed layers. They run the layers before their first difference once. A variant with
other weights is measured alone.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import memory as room
from lamina.engine import sweep as engine
from lamina.engine.batches import TOKENS
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.evaluation.assembly import Parts
from lamina.models.boundary import assert_finite
from lamina.models.checkpoint import context
from lamina.models.units import parse
from lamina.store.unfinished import Progress

Scored = tuple[tuple[int, ...], tuple[int, ...]]
"""A context and the continuation whose tokens are scored, as token ids."""

LINE = 512  # tokens of a line that may hold any number of rows

_logger = logging.getLogger(__name__)


class Likelihood(NamedTuple):
    """Log-likelihood of a continuation in nats, and whether each of its tokens was the likeliest."""

    nats: float
    likeliest: bool


def candidate(model: PreTrainedModel, parts: Parts) -> Candidate | None:
    """A variant of `model` as a candidate of a pass; None if its weights or layers are not those of the model."""
    if parts.plan is None:
        return Candidate()
    if parts.adapter is not None or parts.plan.get(
        "replacements"
    ):  # which are layers of other models
        return None
    patches = {}
    for boundary, fitted in (parts.patches or {}).items():
        repair = fitted.as_patch()
        if repair is None:
            return None
        patches[boundary] = repair.to(model.device, model.dtype)
    return Candidate(frozenset(parts.plan["units"]), patches)


class Together:
    """Variants of `model`, by name. One pass measures all of them when the likelihoods of one are first asked for."""

    def __init__(
        self,
        model: PreTrainedModel,
        candidates: Mapping[str, Candidate],
        progress: Callable[[str], Progress | None] = lambda what: None,
    ) -> None:
        """`progress` takes a hash of some rows and gives the file that keeps their pass until it is finished."""
        self.model, self._progress = model, progress
        # Neighbours that agree in many layers stand together where one pass cannot hold all of them.
        self.candidates = dict(
            sorted(candidates.items(), key=lambda item: sorted(map(parse, item[1].removed)))
        )
        self._found: dict[tuple[Scored, ...], dict[str, list[Likelihood]]] = {}
        self._alone = False

    def likelihoods(self, name: str, rows: Sequence[Scored], stage: str) -> list[Likelihood] | None:
        """The likelihood of each row on the variant called `name`; `stage` is the name of this work in messages.

        None for a variant that is measured alone: it has other weights, or the engine cannot run its family correctly.

        Raises LaminaError if the variant gives NaN.
        """
        key = tuple(rows)
        if name not in self.candidates or self._alone or not rows:
            return None
        if key not in self._found:
            try:
                self._found[key] = self._measured(key)
            except LaminaError as refusal:
                _logger.warning("Each variant is measured alone. %s", refusal)
                self._alone = True
                return None
        likelihoods = self._found[key][name]
        assert_finite(
            torch.tensor([each.nats for each in likelihoods], dtype=self.model.dtype), name, stage
        )
        return likelihoods

    def _measured(self, rows: Sequence[Scored]) -> dict[str, list[Likelihood]]:
        """The likelihoods of the rows on every candidate, by name."""
        samples = shared(rows, context(self.model.config.to_dict()))
        tokens = min(TOKENS, room.tokens("auto", self.model, samples, len(self.candidates)))
        progress = self._progress(
            hashlib.sha256(repr((rows, list(self.candidates))).encode()).hexdigest()
        )
        with engine.opened(self.model, samples, tokens, outputs=False) as session:
            session.measure(range(len(samples)), self.candidates, progress=progress)
        scores = session.scores
        return {
            name: [
                Likelihood(float(nats), bool(hits == len(row[1])))
                for nats, hits, row in zip(
                    scores.loglikelihood[number], scores.hits[number], rows, strict=True
                )
            ]
            for name, number in ((name, scores.index[name]) for name in self.candidates)
        }


def shared(rows: Sequence[Scored], limit: int | None = None) -> list[Sample]:
    """Rows in order, as samples. Rows that follow each other are one sample if they share enough of their contexts.

    Two contexts may also differ near their end if their continuation is the same, as in WinoGrande. `limit` is the
    number of tokens that the model reads at once.
    """
    groups: list[list[Scored]] = []
    length = 0  # of the last group as one line
    for row in rows:
        own = len(row[0]) + len(row[1])
        same = _shared(groups[-1][0], row) if groups else 0
        # Attention grows with the square of a line, and a token that begins all texts is no context.
        if 2 * same >= len(row[1]) and same and length + own - same <= max(LINE, 2 * own):
            groups[-1].append(row)
            length += own - same
        else:
            groups.append([row])
            length = own
    return [
        Sample(
            number, "choices", 0, tuple(Row(*row, len(row[1])) for row in group), "", limit=limit
        )
        for number, group in enumerate(groups)
    ]


def _shared(one: Scored, other: Scored) -> int:
    """The number of tokens that two rows can share."""
    if one[0] == other[0]:
        return len(one[0])
    same = next((n for n, (a, b) in enumerate(zip(one[0], other[0], strict=False)) if a != b), 0)
    return same if one[1] == other[1] and 2 * same >= max(len(one[0]), len(other[0])) else 0

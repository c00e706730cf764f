"""Proves that the engine reproduces a model's own logits, before its numbers are used.

One short row runs through all layers, and with one layer removed: an early layer, a late one, and
one of each other kind. Its logits are compared with those of a model in which that layer returns
its input.

Two or three samples run twice: row by row through a plain model of few layers, one of each kind,
and as lines of one batch through the engine without the other layers. The longest sample is among
them, because some models treat long texts in another way (a window, a chunk, an index of the best
tokens).

If shared contexts change the logits, each row runs alone under the model's own masks. If the logits
still differ, the model is refused.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import forking, packing, taps
from lamina.engine.candidates import Candidate
from lamina.engine.packing import Line
from lamina.engine.session import Session
from lamina.errors import LaminaError
from lamina.models import check
from lamina.models.boundary import share_weights
from lamina.models.structure import family_of, layers_of, sublayers_of, text_config
from lamina.models.surgery import apply_edits
from lamina.models.units import SUBLAYERS, Exchange, Repetition, parse_edit, parse_unit

N_COMPARED = 8  # positions at the end of a row
SHORT_LENGTH = 16  # tokens, at least, of the row that runs without each layer
LONG_LENGTH = 64  # tokens, at most
# Their names in the file of a model's check.
SUBLAYER_FINDING = "sublayers"
MOVES = {"layers that run again": Repetition, "layers that change places": Exchange}

_logger = logging.getLogger(__name__)


class Sharing(NamedTuple):
    """How `Session.share` is called."""

    contexts: bool
    fixed: bool
    mixed: bool


SHARINGS = (
    Sharing(contexts=True, fixed=False, mixed=True),
    Sharing(contexts=False, fixed=False, mixed=True),
    Sharing(contexts=False, fixed=False, mixed=False),
    Sharing(contexts=False, fixed=True, mixed=True),
)
"""The cheapest comes first."""


ProofResult = tuple[Sharing, str]
"""How a model's samples may be run, and why contexts are not shared. Empty text if they are."""


class Proof:
    """The plain model's logits, taken before its layers are wrapped, for the comparison in `prove`.

    Nothing runs if the result for the model is already stored.
    """

    def __init__(self, model: PreTrainedModel, samples: Sequence[Sample]) -> None:
        self.model = model
        self.tolerance = check.dtype_tolerance(model)
        self.windows = forking.attention_windows(model)
        self.longest = max(_longest_row(sample) for sample in samples)
        has_several_rows = any(len(sample.rows) > 1 for sample in samples)
        n_rows = "several rows" if has_several_rows else "one row"
        self.finding_name = f"swept, in lines of {n_rows}"
        self.known_result: ProofResult | None = None
        stored_finding = check.read_finding(model, self.finding_name, self.longest)
        if stored_finding is None:
            self._run_plain_model(samples)
        else:
            *sharing, reason = stored_finding
            self.known_result = (Sharing(*sharing), reason)

    def _run_plain_model(self, samples: Sequence[Sample]) -> None:
        """Take the logits of a short row with and without some layers, and of the chosen samples."""
        model = self.model
        self.samples = _choose_samples(samples)
        short_ids = self.samples[0].sequence()[:LONG_LENGTH]
        longest_ids = max((sample.sequence() for sample in self.samples), key=len)
        check.check_model(model, short_ids, longest_ids)

        self.skipped_layers = check.skipped_layers(model)
        shallow = check.shallow_model(model)
        row_logits: list[torch.Tensor] = []
        for sample in self.samples:
            for row in sample.rows:
                token_ids = (row.context + row.continuation)[:-1]
                row_logits.append(check.last_logits(shallow, token_ids, len(row.continuation)))
        if any(logits.isnan().any() for logits in row_logits):
            # The model is refused later, when its numbers are needed.
            contexts = self.windows is not None
            self.known_result = (Sharing(contexts, fixed=False, mixed=True), "")
            return
        self.plain_logits = torch.cat(row_logits)

        self.short_sample = Sample(0, "text", 0, (_score_end(short_ids),), "")
        n_scored = len(self.short_sample.rows[0].continuation)
        self.removals = [frozenset[int]()]
        for layer in check.tested_removals(model):
            self.removals.append(frozenset({layer}))
        self.logits_without = check.logits_without_layers(
            model, short_ids[:-1], n_scored, self.removals
        )

    def prove(self, session: Session) -> None:
        """Make the session share contexts if that gives the plain model's numbers.

        Otherwise it runs each row alone.

        Raises LaminaError if neither does; it names the family, the layer and the difference.
        """
        if self.known_result is None:
            sharing, reason = self._find_sharing(session)
            check.store_finding(self.model, self.finding_name, [*sharing, reason], self.longest)
        else:
            sharing, reason = self.known_result
            session.share(*sharing)
        if reason:
            _logger.warning(
                "%s runs one row per choice instead of sharing contexts: %s.", self._family, reason
            )

    def _find_sharing(self, session: Session) -> ProofResult:
        """Set the session to the first of SHARINGS that gives the plain model's numbers."""
        reasons: list[str] = []
        sharings: Sequence[Sharing] = SHARINGS
        if self.windows is None:
            reasons.append("its layers see more than a mask can tell")
            sharings = SHARINGS[1:]
        for sharing in sharings:
            reason = self._try_sharing(session, sharing)
            if reason is None:
                return sharing, reasons[0] if reasons else ""
            reasons.append(reason)
        raise LaminaError(
            f"the model family '{self._family}' cannot be swept: {reasons[-1]}. The numbers would "
            "not be the model's own."
        )

    def _try_sharing(self, session: Session, sharing: Sharing) -> str | None:
        """Why a sharing does not give the plain model's numbers; None if it does.

        A trial does not count in `session.layer_tokens`.
        """
        layer_tokens = session.layer_tokens
        try:
            session.share(*sharing)
            return self._find_difference(session)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a family's code raises when it is given streams
            return (
                "its layers cannot run several streams in a batch "
                f"({type(error).__name__}: {error})"
            )
        finally:
            session.layer_tokens = layer_tokens

    @property
    def _family(self) -> str:
        return str(text_config(self.model).model_type)

    @torch.inference_mode()
    def _find_difference(self, session: Session) -> str | None:
        """Where the engine differs from the plain model; None where it does not."""
        n_together = max(1, session.token_budget // len(self.short_sample.sequence()) - 1)
        for start in range(0, len(self.removals), n_together):
            removals = self.removals[start : start + n_together]
            expected_logits = list(self.logits_without[start : start + n_together])
            distances = _measure_distances(
                session, [self.short_sample], list(map(_remove_layers, removals)), expected_logits
            )
            distance = max(distances)
            removal = removals[distances.index(distance)]
            if distance > self.tolerance:
                without = "".join(f"without layer {layer}, " for layer in removal)
                return (
                    f"{without or 'through the engine, '}its logits are {self._describe(distance)}"
                )

        shallow = _remove_layers(self.skipped_layers)
        distance = _measure_distances(session, self.samples, [shallow], [self.plain_logits])[0]
        if distance > self.tolerance:
            return f"through the engine, its logits are {self._describe(distance)}"
        return None

    def _describe(self, distance: float) -> str:
        dtype = str(self.model.dtype).removeprefix("torch.")
        return (
            f"off by {distance:.2g} of their spread, of which rounding in {dtype} explains "
            f"{self.tolerance:g}"
        )


def _remove_layers(layers: Iterable[int]) -> Candidate:
    """The model without these layers."""
    return Candidate(frozenset(map(str, layers)))


def _measure_distances(
    session: Session,
    samples: Sequence[Sample],
    candidates: Sequence[Candidate],
    expected_logits: Sequence[torch.Tensor],
) -> list[float]:
    """How far each candidate's logits are from the expected ones, (scored tokens, V) in order."""
    shares_contexts = session.windows is not None
    lines: list[Line] = []
    for sample_index, sample in enumerate(samples):
        lines += packing.pack_sample(sample_index, sample, shares_contexts)

    # Lines of all lengths share a batch, because a line's numbers may depend on the longest line.
    n_lines = 1
    if session.mixes_lengths:
        longest_line = max(len(line.tokens) for line in lines)
        n_lines = max(1, session.token_budget // (len(candidates) * longest_line))

    row_offsets = np.zeros(len(samples), dtype=np.int64)  # no scores are kept
    logit_parts: list[list[torch.Tensor]] = [[] for _ in candidates]
    for start in range(0, len(lines), n_lines):
        batch_lines = tuple(lines[start : start + n_lines])
        scored_tokens = packing.locate_scored_tokens(batch_lines, row_offsets)
        batch = packing.collate_lines(batch_lines, session.model.device, session.mixes_lengths)
        logits, leaves = session.compute_logits(batch, scored_tokens, candidates)
        for candidate_parts, leaf in zip(logit_parts, leaves, strict=True):
            candidate_parts.append(logits[leaf][scored_tokens.token_positions])

    dtype = session.model.dtype
    return [
        check.logit_distance(torch.cat(candidate_parts), plain_logits, dtype)
        for candidate_parts, plain_logits in zip(logit_parts, expected_logits, strict=True)
    ]


def check_edits(session: Session, edits: Collection[str]) -> None:
    """Prove the session on the kinds of `edits`: removed sub-layers, repeated and exchanged layers.

    Each kind is proven once per model, when it is first needed.

    Raises LaminaError if a layer cannot run without a sub-layer, or if engine and edited model
    differ.
    """
    depth = len(session.layers)
    family = text_config(session.model).model_type
    if any(parse_unit(edit)[1] in SUBLAYERS for edit in edits):
        refusal = (
            f"a layer of the model family '{family}' cannot lose its attention or its MLP alone"
        )
        tested_edits = [f"{depth // 3}.attention", f"{depth - 1}.mlp"]
        _check_edits(session, SUBLAYER_FINDING, tested_edits, f"{refusal}, use `units: layer`")
    for finding_name, kind in MOVES.items():
        moves = [edit for edit in edits if isinstance(parse_edit(edit), kind)]
        if moves:
            refusal = f"the layers of the model family '{family}' cannot be run with edits {moves}"
            _check_edits(session, finding_name, moves, refusal)


def _check_edits(
    session: Session, finding_name: str, tested_edits: Sequence[str], refusal: str
) -> None:
    """Compare the engine with an edited model, and store that they agree."""
    model = session.model
    if check.read_finding(model, finding_name):
        return
    # The text of the proof, from the same samples.
    short_ids = _choose_samples(session.scores.samples)[0].sequence()[:LONG_LENGTH]
    sample = Sample(0, "text", 0, (_score_end(short_ids),), "")
    n_scored = len(sample.rows[0].continuation)

    layer_tokens = session.layer_tokens
    with check.refusing_errors(f"{refusal}. With {' and '.join(tested_edits)} it does not run"):
        with forking.unwrap_layers(model, session.layers, session.head):
            if finding_name == SUBLAYER_FINDING:
                _check_completeness(model, short_ids)
            edited_model = apply_edits(share_weights(model), tested_edits)
            edited_logits = check.last_logits(edited_model, short_ids[:-1], n_scored)
        with torch.inference_mode():
            candidate = Candidate(frozenset(tested_edits))
            distance = _measure_distances(session, [sample], [candidate], [edited_logits])[0]
    session.layer_tokens = layer_tokens

    if distance > check.dtype_tolerance(model):
        raise LaminaError(
            f"{refusal}: with {' and '.join(tested_edits)} the logits of the engine and of the "
            f"edited model differ by {distance:.2g} of their spread."
        )
    check.store_finding(model, finding_name, True)


def _check_completeness(model: PreTrainedModel, token_ids: Sequence[int]) -> None:
    """Refuse a model whose attention or MLP was not found completely.

    If all attention is removed, no token may see another. If both sub-layers of a layer are
    removed, it must return its input, unless the family has a norm on the stream.

    Raises LaminaError that says which condition is violated, and by how much.
    """
    reason = _find_seeing_tokens(model, token_ids)
    if reason is None and not family_of(model).stream_norm:
        reason = _find_remainder(model, token_ids)
    if reason is not None:
        raise LaminaError(
            f"a layer of the model family '{text_config(model).model_type}' cannot lose its "
            f"attention or its MLP alone: {reason}. Use `units: layer`."
        )


def _find_seeing_tokens(model: PreTrainedModel, token_ids: Sequence[int]) -> str | None:
    """How tokens see each other in a model without attention; None if they do not."""
    n_compared = check.compared_positions(model, token_ids)
    depth = len(layers_of(model))
    attention_free = apply_edits(
        share_weights(model), [f"{layer}.attention" for layer in range(depth)]
    )
    reversed_start = token_ids[:-n_compared][::-1]
    changed_ids = [*reversed_start, *token_ids[-n_compared:]]
    changed_logits = check.last_logits(attention_free, changed_ids, n_compared)
    logits = check.last_logits(attention_free, token_ids, n_compared)
    distance = check.logit_distance(changed_logits, logits, model.dtype)
    if distance <= check.dtype_tolerance(model):
        return None
    return (
        "without attention, tokens still affect each other (logits change by "
        f"{distance:.2g} of their spread)"
    )


def _find_remainder(model: PreTrainedModel, token_ids: Sequence[int]) -> str | None:
    """What a layer without its sub-layers still does; None if it returns its input.

    Removing one sub-layer must not silence the other, either.
    """
    n_compared = check.compared_positions(model, token_ids)
    tolerance = check.dtype_tolerance(model)
    dtype = model.dtype
    layer = len(layers_of(model)) // 2
    skipped_logits = check.logits_without_layers(
        model, token_ids, n_compared, [frozenset({layer})]
    )[0]

    without_attention = apply_edits(share_weights(model), [f"{layer}.attention"])
    mlp_logits = check.last_logits(without_attention, token_ids, n_compared)
    for sublayer in sublayers_of(layers_of(without_attention)[layer])["mlp"]:
        # The MLP still runs, so that its output keeps its format.
        hook = forking.silence_sublayer([0], 1, sublayer.residual)
        sublayer.module.register_forward_hook(hook, with_kwargs=True)
    empty_logits = check.last_logits(without_attention, token_ids, n_compared)
    distance = check.logit_distance(empty_logits, skipped_logits, dtype)
    if distance > tolerance:
        return (
            f"without both, layer {layer} does not return its input (logits are off by "
            f"{distance:.2g} of their spread)"
        )

    without_mlp = apply_edits(share_weights(model), [f"{layer}.mlp"])
    attention_logits = check.last_logits(without_mlp, token_ids, n_compared)
    logits_alone = {"mlp": mlp_logits, "attention": attention_logits}
    for component, logits in logits_alone.items():
        does_nothing = check.logit_distance(logits, skipped_logits, dtype) <= tolerance
        if does_nothing and _has_output(model, layer, component, token_ids):
            return f"layer {layer} loses its {component} too when the other sub-layer is removed"
    return None


def _has_output(
    model: PreTrainedModel, layer: int, component: str, token_ids: Sequence[int]
) -> bool:
    """Whether a sub-layer's output is anything but zeros.

    In an exported model, a removed sub-layer outputs zeros.
    """
    modules = [sublayer.module for sublayer in sublayers_of(layers_of(model)[layer])[component]]
    with taps.record_outputs(modules, model.device) as recorder:
        check.last_logits(model, token_ids, 1)
    return any(bool(output.any()) for output in recorder.outputs.values())


def _longest_row(sample: Sample) -> int:
    """Tokens of the longest row of a sample."""
    return max(len(row.context) + len(row.continuation) for row in sample.rows)


def _choose_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The shortest sample that is long enough, the longest with several rows, and the longest one.

    Their rows are scored at their ends.
    """
    by_length = sorted(samples, key=_longest_row)
    longest_sample = by_length[-1]
    long_enough = [sample for sample in by_length if _longest_row(sample) >= SHORT_LENGTH]
    with_several_rows = [sample for sample in by_length if len(sample.rows) > 1]
    chosen_samples = [
        long_enough[0] if long_enough else longest_sample,
        *with_several_rows[-1:],
        longest_sample,
    ]
    distinct_samples = {id(sample): sample for sample in chosen_samples}
    return [_score_row_ends(sample) for sample in distinct_samples.values()]


def _score_row_ends(sample: Sample) -> Sample:
    """A sample whose rows are scored at their last tokens."""
    rows = tuple(_score_end(row.context + row.continuation, row) for row in sample.rows)
    return replace(sample, gold=0, rows=rows)


def _score_end(token_ids: tuple[int, ...], row: Row | None = None) -> Row:
    """A row whose last tokens are scored: the last of a row's continuation, or those of a text."""
    n_scorable = len(row.continuation) if row else len(token_ids) - 1
    n_scored = min(N_COMPARED, n_scorable)
    return Row(token_ids[:-n_scored], token_ids[-n_scored:], n_scored)

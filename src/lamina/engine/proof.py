"""The engine is proven on the model at hand, before its numbers are used.

Two or three samples run twice: row by row through the plain model, and as lines of one batch through the engine. Then
one short row runs without one layer: an early one, a late one, and one of each other kind. It is compared with a model
in which that layer returns its input. The longest sample is among the samples, so that the proof reaches whatever a
model does from some length on (a window, a chunk, an index of the best tokens) if the sweep reaches it. If shared
contexts give other numbers, each row runs alone under the model's own masks; if that does too, the model is refused.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import forking, packing
from lamina.engine.candidates import Candidate
from lamina.engine.session import Session
from lamina.errors import LaminaError
from lamina.models import check
from lamina.models.boundary import share
from lamina.models.structure import family_of, halves, layers_of, text_config
from lamina.models.surgery import remove

_LAST = 8  # positions that are compared
_SHORT, _LONG = 16, 64  # tokens of the row without each layer

# How `Session.share` is called: contexts, fixed, mixed; the cheapest way first.
_WAYS = ((True, False, True), (False, False, True), (False, False, False), (False, True, True))

_HALVES = "halves"  # the name under which the proof of halves is kept

_logger = logging.getLogger(__name__)


class Proof:
    """The plain model's logits, taken before its layers are wrapped; `prove` compares a session with them."""

    def __init__(self, model: PreTrainedModel, samples: Sequence[Sample]) -> None:
        self.model, self.most = model, check.tolerance(model)
        self.windows = forking.windows(model)
        self.longest, most_rows = (
            max(map(_length, samples)),
            max(len(sample.rows) for sample in samples),
        )
        self.what = f"swept, in lines of {'several rows' if most_rows > 1 else 'one row'}"
        self.known: Sequence[Any] | None = check.finding(model, self.what, self.longest)
        if self.known is not None:
            return
        self.samples = _chosen(samples)
        text = self.samples[0].sequence()[:_LONG]
        check.check(model, text, max((sample.sequence() for sample in self.samples), key=len))
        rows = [row for sample in self.samples for row in sample.rows]
        texts = [((row.context + row.continuation)[:-1], len(row.continuation)) for row in rows]
        self.wanted = [check.logits(model, *text) for text in texts]
        if any(wanted.isnan().any() for wanted in self.wanted):
            # The model is refused later, when its numbers are needed.
            self.known = (self.windows is not None, False, True, "")
            return
        self.text = Sample(0, "text", 0, (_ending(text),), "")
        last = len(self.text.rows[0].continuation)
        self.gone = check.removals(model)
        self.without = check.without(
            model, text[:-1], last, [frozenset({layer}) for layer in self.gone]
        )

    def prove(self, session: Session) -> None:
        """Make the session share contexts if that is right, else run each row alone.

        Raises LaminaError if neither gives the plain model's numbers, naming the family, the layer and how far it is
        off.
        """
        if self.known is not None:
            *way, why = self.known
            session.share(*way)
        else:
            *way, why = self._way(session)
            check.note(self.model, self.what, [*way, why], self.longest)
        if why:
            _logger.warning(
                "%s runs one row per choice, contexts are not shared: %s.", self._name, why
            )

    def _way(self, session: Session) -> tuple[bool, bool, bool, str]:
        """The first way to `share` that gives the plain model's numbers, and why contexts are not shared."""
        reasons = [] if self.windows is not None else ["its layers see more than a mask can tell"]
        for way in _WAYS[len(reasons) :]:
            worked = session.layer_tokens
            try:
                session.share(*way)
                reason = self._difference(session)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a family's code raises when it is given streams
                reason = f"its layers refuse several streams in a batch ({type(error).__name__}: {error})"
            session.layer_tokens = worked
            if reason is None:
                return *way, reasons[0] if reasons else ""
            reasons.append(reason)
        raise LaminaError(
            f"the model family '{self._name}' cannot be swept: {reasons[-1]}. No number would be the model's own."
        )

    @property
    def _name(self) -> str:
        return str(text_config(self.model).model_type)

    @torch.inference_mode()
    def _difference(self, session: Session) -> str | None:
        """Where the engine differs from the plain model; None where it does not."""
        [far] = _far(session, self.samples, [Candidate()], [torch.cat(self.wanted)])
        if far > self.most:
            return f"through the engine, its logits are {self._by(far)}"
        width = max(1, session.tokens // len(self.text.sequence()) - 1)
        for start in range(0, len(self.gone), width):
            gone = self.gone[start : start + width]
            without = [Candidate(frozenset({str(layer)})) for layer in gone]
            fars = _far(session, [self.text], without, list(self.without[start : start + width]))
            far, layer = max(zip(fars, gone, strict=True))
            if far > self.most:
                return f"without layer {layer}, its logits are {self._by(far)}"
        return None

    def _by(self, far: float) -> str:
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"off by {far:.2g} of their spread, where rounding in {dtype} explains {self.most:g}"


def _far(
    session: Session,
    samples: Sequence[Sample],
    candidates: Sequence[Candidate],
    wanted: Sequence[torch.Tensor],
) -> list[float]:
    """The distance of each candidate from the wanted logits, at the samples' scored tokens in order."""
    contexts = session.windows is not None
    lines = [
        line
        for number, sample in enumerate(samples)
        for line in packing.pack(number, sample, contexts)
    ]
    # One batch has lines of any length, because a line's numbers may depend on the longest line.
    size = max(
        1,
        session.tokens // (len(candidates) * max(len(line.tokens) for line in lines))
        if session.mixed
        else 1,
    )
    parts: list[list[torch.Tensor]] = [[] for _ in candidates]
    for start in range(0, len(lines), size):
        batch = tuple(lines[start : start + size])
        places = packing.places(batch, np.zeros(len(samples), dtype=np.int64))
        logits, leaves = session.logits(
            packing.collate(batch, session.model.device, session.mixed), places, candidates
        )
        for part, leaf in zip(parts, leaves, strict=True):
            part.append(logits[leaf][places.at])
    dtype = session.model.dtype
    return [
        check.distance(torch.cat(part), plain, dtype)
        for part, plain in zip(parts, wanted, strict=True)
    ]


def check_halves(session: Session) -> None:
    """Prove the session on layers that lack their attention or their MLP, once, when such a layer is first needed.

    Raises LaminaError if a layer cannot lose a half, or if engine and cut model differ without it.
    """
    model = session.model
    if check.finding(model, _HALVES):
        return
    # The text of the proof, from the same samples.
    short = _chosen(session.scores.samples)[0].sequence()[:_LONG]
    text, depth = Sample(0, "text", 0, (_ending(short),), ""), len(session.layers)
    units = [f"{depth // 3}.attention", f"{depth - 1}.mlp"]
    cannot = f"a layer of the model family '{text_config(model).model_type}' cannot lose its attention or its MLP alone"
    worked = session.layer_tokens
    with check.refused(f"{cannot}, use units: layer. Without one it does not run"):
        with forking.unwrapped(model, session.layers, session.head):
            _check_parts(model, short)
            wanted = check.logits(
                remove(share(model), units), short[:-1], len(text.rows[0].continuation)
            )
        with torch.inference_mode():
            [far] = _far(session, [text], [Candidate(frozenset(units))], [wanted])
    session.layer_tokens = worked
    if far > check.tolerance(model):
        raise LaminaError(
            f"{cannot}: without {units[0]} and {units[1]} the logits of engine and cut model are {far:.2g} of their "
            "spread apart. Use units: layer."
        )
    check.note(model, _HALVES, True)


def _check_parts(model: PreTrainedModel, ids: Sequence[int]) -> None:
    """Refuse a model whose attention or MLP was not found completely.

    With the attention of every layer gone no token may see another, and a layer without both halves must hand its
    input on, unless the family is known for a norm on the stream.

    Raises LaminaError, which says which of the two, and by how much.
    """
    depth, last, dtype, most = (
        len(layers_of(model)),
        check.places(model, ids),
        model.dtype,
        check.tolerance(model),
    )
    tokenwise = remove(share(model), [f"{layer}.attention" for layer in range(depth)])
    changed = [*ids[:-last][::-1], *ids[-last:]]
    far = check.distance(
        check.logits(tokenwise, changed, last), check.logits(tokenwise, ids, last), dtype
    )
    reason = (
        f"without attention tokens still see each other (logits move by {far:.2g} of their spread)"
    )
    if far <= most and not family_of(model).stream_norm:
        layer = depth // 2
        [wanted] = check.without(model, ids, last, [frozenset({layer})])
        empty = remove(share(model), [f"{layer}.attention"])
        lonely = {"mlp": check.logits(empty, ids, last)}
        for half in halves(layers_of(empty)[layer])["mlp"]:
            # The MLP still runs, so that its output keeps its own form.
            half.module.register_forward_hook(
                forking.silencer([0], 1, half.residual), with_kwargs=True
            )
        far = check.distance(check.logits(empty, ids, last), wanted, dtype)
        reason = f"layer {layer} without both does not hand its input on (logits are {far:.2g} of their spread off)"
        lonely["attention"] = check.logits(remove(share(model), [f"{layer}.mlp"]), ids, last)
        for part, alone in lonely.items():
            if (
                far <= most
                and check.distance(alone, wanted, dtype) <= most
                and _gives(model, layer, part, ids)
            ):
                far, reason = (
                    torch.inf,
                    f"layer {layer} takes its {part} with it when the other half goes",
                )
    if far > most:
        raise LaminaError(
            f"a layer of the model family '{text_config(model).model_type}' cannot lose its attention or its MLP "
            f"alone: {reason}. Use units: layer."
        )


def _gives(model: PreTrainedModel, layer: int, part: str, ids: Sequence[int]) -> bool:
    """Whether a half of a layer gives anything but zeros, as an export with removed halves does."""
    given: list[torch.Tensor] = []
    handles = [
        half.module.register_forward_hook(
            lambda module, args, output: given.append(
                output if isinstance(output, torch.Tensor) else output[0]
            )
        )
        for half in halves(layers_of(model)[layer])[part]
    ]
    try:
        check.logits(model, ids, 1)
    finally:
        for handle in handles:
            handle.remove()
    return any(bool(output.any()) for output in given)


def _length(sample: Sample) -> int:
    return max(len(row.context) + len(row.continuation) for row in sample.rows)


def _chosen(samples: Sequence[Sample]) -> list[Sample]:
    """The shortest sample of some length, the longest of several rows, and the longest, scored at their ends."""
    order = sorted(samples, key=_length)
    short = next((sample for sample in order if _length(sample) >= _SHORT), order[-1])
    several = [sample for sample in order if len(sample.rows) > 1]
    chosen = {id(sample): sample for sample in (short, *several[-1:], order[-1])}
    return [
        replace(
            sample,
            gold=0,
            rows=tuple(_ending(row.context + row.continuation, row) for row in sample.rows),
        )
        for sample in chosen.values()
    ]


def _ending(ids: tuple[int, ...], row: Row | None = None) -> Row:
    """A row whose last tokens are scored: the last of its continuation, or the last few of a text."""
    last = min(_LAST, len(row.continuation) if row else len(ids) - 1)
    return Row(ids[:-last], ids[-last:], last)

"""The check of a model before anything is measured with it: the proofs of the engine on texts of tokens in a row."""

from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import capture
from lamina.engine import memory as room
from lamina.engine import sweep as engine
from lamina.models.check import probe
from lamina.models.structure import text_config

LENGTH = 512  # tokens of the longest text, or as many as the model has positions
_SHORT, _CHOICE = 24, 4  # tokens of a short text, and of a choice


def check_model(model: PreTrainedModel, tokens: int | str) -> None:
    """Prove that the engine gives the model's own numbers, on texts and on choices behind a context, or a LaminaError.

    `tokens` is the budget of one pass, or `auto`. Jobs prove longer texts, and layers without a half, themselves.
    """
    positions = getattr(text_config(model), "max_position_embeddings", None)
    longest = min(LENGTH, positions) if isinstance(positions, int) and positions > 0 else LENGTH
    texts = [_sample(model, n, [length]) for n, length in enumerate((_SHORT, longest))]
    choices = [
        _sample(model, n, [length, length - 1, length])
        for n, length in enumerate((_SHORT, longest))
    ]
    for samples in (texts, choices):
        with engine.opened(model, samples, room.tokens(tokens, model, samples)):
            pass
    capture.check_beside(model, texts[0].sequence(), texts[1].sequence())


def _sample(model: PreTrainedModel, number: int, lengths: list[int]) -> Sample:
    """Rows of these lengths with one context; their continuations differ."""
    ids = probe(model)
    line = [ids[(place + place // len(ids)) % len(ids)] for place in range(max(lengths))]
    context = tuple(line[: max(lengths) - _CHOICE])
    rows = [
        Row(
            context,
            tuple(ids[(place + shift) % len(ids)] for place in range(length - len(context))),
            _CHOICE,
        )
        for shift, length in enumerate(lengths)
    ]
    return Sample(number, "choice" if len(lengths) > 1 else "text", 0, tuple(rows), str(number))

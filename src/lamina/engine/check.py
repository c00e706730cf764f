"""The check of a model before anything is measured: the engine's proofs on made-up texts."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import capture, memory, sweep
from lamina.models import workload
from lamina.models.check import probe_sequence
from lamina.models.structure import text_config

LENGTH = 512  # tokens of the longest text, or as many as the model has positions
SHORT_LENGTH = 24  # tokens of a short text
CHOICE_LENGTH = 4  # tokens of a choice


def check_model(model: PreTrainedModel) -> None:
    """Prove that the engine reproduces the model, on texts and on choices with a context.

    Jobs that need longer texts, or layers without a sub-layer, prove those themselves.

    Raises LaminaError if the engine's numbers differ from the model's.
    """
    text_lengths = (SHORT_LENGTH, _longest_text(model))
    texts = [_make_text(model, index, length) for index, length in enumerate(text_lengths)]
    questions = [_make_question(model, index, length) for index, length in enumerate(text_lengths)]
    workload.done.expect(3, "checks")
    for samples in (texts, questions):
        # Opening a session proves it.
        with sweep.open_session(model, samples, memory.choose_token_budget("auto", model, samples)):
            workload.done.advance()
    capture.check_padding(model, texts[0].sequence(), texts[1].sequence())


def _longest_text(model: PreTrainedModel) -> int:
    """LENGTH, or the model's number of positions if that is smaller."""
    n_positions = getattr(text_config(model), "max_position_embeddings", None)
    if isinstance(n_positions, int) and n_positions > 0:
        return min(LENGTH, n_positions)
    return LENGTH


def _make_text(model: PreTrainedModel, index: int, length: int) -> Sample:
    """A text of `length` tokens."""
    return Sample(index, "text", 0, _make_rows(model, [length]), str(index))


def _make_question(model: PreTrainedModel, index: int, length: int) -> Sample:
    """Two choices of different lengths; the longer row has `length` tokens."""
    rows = _make_rows(model, [length, length - 1])
    return Sample(index, "choices", 0, rows, str(index))


def _make_rows(model: PreTrainedModel, lengths: Sequence[int]) -> tuple[Row, ...]:
    """Rows of these lengths that share a context and differ in their continuations."""
    token_ids = probe_sequence(model)
    n_ids = len(token_ids)
    n_context = max(lengths) - CHOICE_LENGTH
    # Each cycle through the ids skips one of them, so that the text does not repeat itself.
    context = tuple(token_ids[(index + index // n_ids) % n_ids] for index in range(n_context))
    rows: list[Row] = []
    for shift, length in enumerate(lengths):
        n_choice = length - n_context
        choice = tuple(token_ids[(index + shift) % n_ids] for index in range(n_choice))
        rows.append(Row(context, choice, CHOICE_LENGTH))
    return tuple(rows)

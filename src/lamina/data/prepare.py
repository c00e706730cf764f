"""Prepares a calibration's samples from its entry in the configuration."""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval.api.task import ConfigurableTask
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data import calibrations, documents, encoding, lm_tasks
from lamina.data.answers import check_undecided
from lamina.data.calibrations import CalibrationSamples, Row, Sample, check_ids, encode_document
from lamina.data.files import check_limit
from lamina.data.overlap import document_hash, hash_word_runs
from lamina.data.prompts import Style
from lamina.data.task_files import check_written
from lamina.data.task_groups import TaskOrGroup, list_tasks, split_in_proportion
from lamina.errors import LaminaError, located_at
from lamina.models.checkpoint import check_fits, stated_context
from lamina.models.load import load_tokenizer
from lamina.models.manifest import load_skeleton
from lamina.options import calibrations as entries

FEWEST_RIGHT = 10
"""Right answers that a calibration of the model's own answers needs. If it has fewer questions, the
model must answer all of them right."""

_logger = logging.getLogger(__name__)


class DrawnSamples(NamedTuple):
    """Samples of a calibration, and what cannot be counted from them."""

    samples: list[Sample]
    source: str
    """The tasks, the text or the file that they are drawn from."""
    n_undecided: int = 0
    """Number of documents left out because no score decides them for this model."""
    longest_answer: int = 0
    """Token limit of the answers that a model writes to them; 0 if it writes none."""


def prepare_calibration(
    name: str,
    entry: entries.Calibration,
    manifest: dict[str, Any],
    root: Path,
    parts: Mapping[str, entries.Calibration] | None = None,
    written: Mapping[str, str] | None = None,
) -> CalibrationSamples:
    """Tokenise the samples of calibration `name` for one model.

    Documents that no score decides for this model are left out and counted (`n_undecided`).

    manifest: The model's manifest.
    parts: The entries that a mixture is made of, by name.
    written: By the name of a calibration, the file of the model's own answers
        (`lamina.evaluation.generation.answer_calibration`). A calibration without a file has the
        answers of the data.

    Raises LaminaError if a task, split or file is missing, there are fewer samples than the entry
    asks for, half of them are undecided, one cannot be encoded or does not fit into the model's
    context, or the model has too few right answers of its own.
    """
    vocabulary = int(manifest["vocabulary"])
    if written and name in written:
        own_answers = calibrations.read_calibration(written[name], runs=True)
        return select_own_answers(f"calibrations.{name}", entry, own_answers, vocabulary)

    if isinstance(entry, entries.Mixture):
        prepared_parts = {
            part_name: prepare_calibration(part_name, part, manifest, root, None, written)
            for part_name, part in (parts or {}).items()
        }
        drawn_samples = _draw_from_parts(name, entry, parts or {}, prepared_parts)
    else:
        drawn_samples = _draw_from_source(name, entry, manifest, root)

    return calibrations.build_calibration(
        drawn_samples.samples,
        vocabulary,
        n_undecided=drawn_samples.n_undecided,
        longest_answer=drawn_samples.longest_answer,
        split=getattr(entry, "split", None),
        seed=getattr(entry, "seed", 0),
        source=drawn_samples.source,
    )


def _draw_from_source(
    name: str, entry: entries.Calibration, manifest: dict[str, Any], root: Path
) -> DrawnSamples:
    """Samples of a calibration that is not a mixture."""
    tokenizer = load_tokenizer(manifest)
    # Without weights: enough for lm-eval to know its context length.
    model = load_skeleton(manifest["path"], manifest["source"], manifest["trust_remote_code"])
    if manifest["chat_template"] and not tokenizer.chat_template:
        raise LaminaError(
            f"models: chat_template: the tokenizer of '{manifest['source']}' has no chat template. "
            "Write chat_template: false, or put chat_template.jinja beside its weights."
        )

    if isinstance(entry, entries.Text | entries.Hub):
        model_context = stated_context(model.config.to_dict())
        length_key = f"calibrations.{name}.length"
        check_fits(length_key, entry.length, model_context, manifest["source"])
        return _draw_from_texts(name, entry, tokenizer, int(manifest["vocabulary"]), root)
    return _draw_from_tasks(name, entry, model, tokenizer, Style.of(manifest), root)


def select_own_answers(
    where: str, entry: entries.Calibration, own_answers: CalibrationSamples, vocabulary: int
) -> CalibrationSamples:
    """The answers that the model wrote itself; with `keep: right`, only the right ones.

    own_answers: From `lamina.evaluation.generation.answer_calibration`.

    Raises LaminaError if too few of them are right.
    """
    is_right = own_answers.facts["right"]
    keeps_all = getattr(entry, "keep", "all") == "all"
    kept = [
        sample
        for sample, right in zip(own_answers.samples, is_right, strict=True)
        if keeps_all or right
    ]
    if len(kept) < min(FEWEST_RIGHT, len(is_right)):
        raise LaminaError(
            f"{where}.keep: the model answers {len(kept)} of {len(is_right)} questions right, "
            f"too few to calibrate on (at least {FEWEST_RIGHT} are needed). Write keep: all, a "
            "larger limit, or more examples (num_fewshot)."
        )
    return calibrations.build_calibration(
        _renumber(kept),
        vocabulary,
        split=own_answers.facts["split"],
        seed=own_answers.facts["seed"],
        source=own_answers.facts["source"],
        n_asked=len(is_right),
        n_right=None if None in is_right else sum(is_right),
        longest_answer=own_answers.facts["longest_answer"],
        temperature=getattr(entry, "temperature", None),
    )


def _draw_from_parts(
    name: str,
    entry: entries.Mixture,
    part_entries: Mapping[str, entries.Calibration],
    prepared_parts: Mapping[str, CalibrationSamples],
) -> DrawnSamples:
    """Samples of a mixture."""
    sources: list[str] = []
    for part_name, part in prepared_parts.items():
        # A file of questions is called by the name of its entry.
        is_file = isinstance(part_entries[part_name], entries.Choices)
        sources.append(part_name if is_file else part.facts["source"])
    n_undecided = sum(part.facts["n_undecided"] for part in prepared_parts.values())
    samples = mix_samples(name, entry, prepared_parts)
    return DrawnSamples(samples, ",".join(sources), n_undecided)


def _draw_from_texts(
    name: str,
    entry: entries.Text | entries.Hub,
    tokenizer: PreTrainedTokenizerBase,
    vocabulary: int,
    root: Path,
) -> DrawnSamples:
    """Samples of a text file or a data set of texts."""
    where = f"calibrations.{name}"
    is_long = None
    if entry.min_tokens is not None:
        is_long = partial(_has_tokens, tokenizer, entry.min_tokens)
    if isinstance(entry, entries.Hub):
        source = entry.hub
        texts = documents.read_hub(entry, root, where, is_long)
    else:
        source = entry.text
        path = documents.corpus_file(entry.text, entry.split, root)
        keeps_blank = entry.joined is not None
        texts = documents.read_documents(path, entry.documents, where, keeps_blank, is_long)
    with located_at(where):
        if entry.joined is None:
            samples = text_samples(texts, tokenizer, entry.length, vocabulary)
        else:
            joined_text = entry.joined.join(texts)
            samples = window_samples(joined_text, tokenizer, entry.length, vocabulary)
    return DrawnSamples(samples, source)


def _has_tokens(tokenizer: PreTrainedTokenizerBase, n_tokens: int, text: str) -> bool:
    return len(encode_document(tokenizer, text)) >= n_tokens


def _draw_from_tasks(
    name: str,
    entry: entries.Calibration,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    style: Style,
    root: Path,
) -> DrawnSamples:
    """Samples of lm-eval tasks or of a file of questions, without those that no score decides."""
    asked: list[Sample] = []
    undecided: list[str] = []
    longest_answer = 0
    lm = encoding.open_encoder(model, tokenizer)
    for task, samples in draw_tasks(name, entry, lm, style, root):
        asked += samples
        if task.config.output_type == "generate_until":
            settings = task.config.generation_kwargs or {}
            longest_answer = max(longest_answer, lm.answer_length(settings))
        undecided += lm_tasks.undecided_documents(task, samples)
    check_undecided(f"calibrations.{name}", undecided, len(asked))

    decided = [sample for sample in asked if not sample.is_undecided]
    source = entry.choices if isinstance(entry, entries.Choices) else ",".join(entry.drawn)
    return DrawnSamples(_renumber(decided), source, len(undecided), longest_answer)


def draw_tasks(
    name: str, entry: entries.Calibration, lm: encoding.EncodingLM, style: Style, root: Path
) -> Iterator[tuple[ConfigurableTask, list[Sample]]]:
    """The tasks of calibration `name` with the samples that are drawn from each; none for texts.

    A task holds the requests of its samples.

    Raises LaminaError if the model is to write the answers, but the task's are not generated.
    """
    if not isinstance(entry, entries.Task | entries.Tasks | entries.Choices):
        return
    options: dict[str, Any] = {"fewshot_seed": entry.fewshot_seed}
    if isinstance(entry, entries.Choices):
        sources = [name]
        options |= {"choices": entry.choices}
    else:
        sources = entry.drawn
        options |= {"split": entry.split, "trust_code": entry.trust_code}
    for source in sources:
        loaded = lm_tasks.load_task(source, root, entry.num_fewshot, **options)
        own = isinstance(entry, entries.Choices) or lm_tasks.is_own(source, root)
        n_samples = _count_draws(name, entry, source, loaded)
        for task, count in zip(list_tasks(loaded), n_samples, strict=True):
            if not count:
                continue
            if isinstance(entry, entries.Task | entries.Tasks) and entry.own:
                _check_own_answers(name, entry, task)
            yield task, lm_tasks.task_samples(task, lm, count, entry.seed, style, own)


def _count_draws(
    name: str,
    entry: entries.Task | entries.Tasks | entries.Choices,
    source: str,
    loaded: TaskOrGroup,
) -> list[int]:
    """The number of samples that are drawn from each task of a source."""
    sizes = [len(task.eval_docs) for task in list_tasks(loaded)]
    if isinstance(entry, entries.Tasks):
        return [max(1, int(entry.fraction * size)) for size in sizes]
    check_limit(entry.limit, sum(sizes), f"calibrations.{name}.limit", source)
    return split_in_proportion(entry.limit or sum(sizes), sizes)


def _check_own_answers(
    name: str, entry: entries.Task | entries.Tasks, task: ConfigurableTask
) -> None:
    """Refuse a task whose answers the model cannot write, or which cannot be right."""
    check_written(task.config.task, task.config.output_type, f"calibrations.{name}")
    if entry.keep == "right" and "exact_match" not in task.aggregation():
        raise LaminaError(
            f"calibrations.{name}.keep: task '{task.config.task}' has no exact_match, so its "
            "answers cannot be marked right or wrong. Write keep: all."
        )


def text_samples(
    documents: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    vocabulary: int | None = None,
) -> list[Sample]:
    """One sample per document: its first `length` tokens, each but the first predicted.

    Documents of fewer than two tokens are left out, and their number is logged.

    Raises LaminaError if a document holds a token outside of the model's `vocabulary`, or no
    document has two tokens.
    """
    samples: list[Sample] = []
    for number, text in enumerate(documents):
        token_ids = encode_document(tokenizer, text)[:length]
        location = f"document {number} ('{text.strip()[:40]}…')"
        check_ids(tokenizer, token_ids, vocabulary, location)
        if len(token_ids) < 2:
            continue
        samples.append(_text_sample(len(samples), token_ids, text))
    if not samples:
        raise LaminaError(
            "text: no document has two tokens or more. Write a file with longer documents."
        )
    n_short = len(documents) - len(samples)
    if n_short:
        _logger.warning(
            "%d of %d documents have fewer than two tokens and are left out.",
            n_short,
            len(documents),
        )
    return samples


def window_samples(
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    vocabulary: int | None = None,
) -> list[Sample]:
    """The windows of `length` tokens of one text, without an incomplete last one.

    Raises LaminaError if the text holds a token outside of the model's `vocabulary`, or does not
    fill a window.
    """
    token_ids = encode_document(tokenizer, text)
    check_ids(tokenizer, token_ids, vocabulary, "the joined text")
    n_windows = len(token_ids) // length
    if not n_windows:
        raise LaminaError(
            f"the joined documents have only {len(token_ids)} tokens, less than one sample. Write "
            f"a `length` of at most {len(token_ids)}, or more documents."
        )
    samples: list[Sample] = []
    for index in range(n_windows):
        window = token_ids[index * length : (index + 1) * length]
        samples.append(_text_sample(index, window, str(tokenizer.decode(window))))
    return samples


def _text_sample(index: int, token_ids: Sequence[int], text: str) -> Sample:
    """A sample of text: each token but the first is predicted."""
    return Sample(
        index=index,
        kind="text",
        gold=0,
        rows=(Row(tuple(token_ids[:1]), tuple(token_ids[1:]), len(text)),),
        document=document_hash(text),
        runs=hash_word_runs(text),
    )


def mix_samples(
    name: str, entry: entries.Mixture, parts: Mapping[str, CalibrationSamples]
) -> list[Sample]:
    """Samples drawn from `parts` by seed, in the shares of the entry's weights.

    There are `limit` of them, or as many as the parts allow.

    Raises LaminaError if a part has fewer samples than its share.
    """
    weights = [entry.mixture[part_name] for part_name in parts]
    # The mixture size that each part would be enough for; the part that is used up first limits it.
    enough_for = {
        part_name: len(part.samples) * sum(weights) / entry.mixture[part_name]
        for part_name, part in parts.items()
    }
    scarce = min(enough_for, key=lambda part_name: enough_for[part_name])
    most = int(enough_for[scarce] + 1e-9)
    if entry.limit and entry.limit > most:
        raise LaminaError(
            f"calibrations.{name}.limit: {entry.limit} samples are asked for, but the "
            f"{len(parts[scarce].samples)} of '{scarce}' are enough for only {most}. Write at "
            f"most {most}, or more samples of '{scarce}'."
        )

    mixed: list[Sample] = []
    counts = split_in_proportion(entry.limit or most, weights)
    for part, count in zip(parts.values(), counts, strict=True):
        chosen = sorted(random.Random(entry.seed).sample(range(len(part.samples)), count))
        mixed += [part.samples[index] for index in chosen]
    return _renumber(mixed)


def _renumber(samples: Sequence[Sample]) -> list[Sample]:
    return [replace(sample, index=index) for index, sample in enumerate(samples)]

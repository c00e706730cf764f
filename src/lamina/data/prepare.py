"""From a calibration's entry in the config to its samples."""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask
from transformers import PreTrainedTokenizerBase

from lamina.config import calibrations as entries
from lamina.data import calibrations, documents, encoding, lm_tasks
from lamina.data.answers import check_undecided
from lamina.data.calibrations import Calibration, Row, Sample, check_ids, encode
from lamina.data.files import check_limit
from lamina.data.overlap import document_hash, runs
from lamina.data.prompts import Style
from lamina.data.task_files import check_written
from lamina.data.task_groups import list_tasks, split_in_proportion
from lamina.errors import LaminaError, at
from lamina.models.checkpoint import check_fits, context
from lamina.models.load import load_tokenizer
from lamina.models.manifest import skeleton

FEWEST = 10  # right answers of a calibration, if it has as many questions

_logger = logging.getLogger(__name__)


def prepare(
    name: str,
    entry: entries.Calibration,
    manifest: dict[str, Any],
    root: Path,
    parts: Mapping[str, entries.Calibration] | None = None,
    written: Mapping[str, str] | None = None,
) -> Calibration:
    """Tokenise the samples of calibration `name` for one model; `parts` are the entries that a mixture is made of.

    `written` are the files of what the model answers itself (`lamina.evaluation.generation.own_answers`), by the names
    of the calibrations; without its file, a calibration has the answers of the data.

    Documents that no score decides for this model are left out and counted (`n_undecided`).

    Raises LaminaError if a task, split or file is missing, there are fewer samples than the entry asks for, half of
    them are undecided, one cannot be encoded or does not fit into the model's context, or the model has too few right
    answers of its own.
    """
    where, vocabulary = f"calibrations.{name}", int(manifest["vocabulary"])
    n_undecided = 0
    if written and name in written:
        return _own(where, entry, calibrations.read(written[name], runs=True), vocabulary)
    tokenizer = load_tokenizer(manifest)
    # Without weights: enough for lm-eval to know its context length.
    model = skeleton(manifest["path"], manifest["source"], manifest["trust_remote_code"])
    if manifest["chat_template"] and not tokenizer.chat_template:
        raise LaminaError(
            f"models: chat_template: the tokenizer of '{manifest['source']}' has no chat template. Write "
            "chat_template: false, or put chat_template.jinja beside its weights."
        )
    if isinstance(entry, entries.Mixture):
        own = parts or {}
        made = {key: prepare(key, part, manifest, root, None, written) for key, part in own.items()}
        samples = mixed(name, entry, made)
        n_undecided = sum(part.facts["n_undecided"] for part in made.values())
        # Questions of one's own are named by their entry.
        named = (
            key if isinstance(own[key], entries.Choices) else made[key].facts["source"]
            for key in made
        )
        source = ",".join(named)
    elif isinstance(entry, entries.Text | entries.Hub):
        check_fits(
            f"{where}.length", entry.length, context(model.config.to_dict()), manifest["source"]
        )
        if isinstance(entry, entries.Hub):
            texts, source = documents.read_hub(entry, root, where), entry.hub
        else:
            path, source = documents.corpus_file(entry.text, entry.split, root), entry.text
            texts = documents.read_documents(path, entry.documents, where)
        with at(where):
            samples = text_samples(texts, tokenizer, entry.length, vocabulary)
    else:
        asked: list[Sample] = []
        undecided: list[str] = []
        lm = encoding.recorder(model, tokenizer)
        for task, some in drawn(name, entry, lm, Style.of(manifest), root):
            asked += some
            undecided += lm_tasks.undecided_documents(task, some)
        check_undecided(where, undecided, len(asked))
        n_undecided = len(undecided)
        decided = [sample for sample in asked if not sample.is_undecided]
        samples = [replace(sample, index=index) for index, sample in enumerate(decided)]
        source = entry.choices if isinstance(entry, entries.Choices) else ",".join(entry.drawn)
    split, seed = getattr(entry, "split", None), getattr(entry, "seed", 0)
    facts = {"n_undecided": n_undecided, "split": split, "seed": seed, "source": source}
    return calibrations.build(samples, vocabulary, **facts)


def _own(
    where: str, entry: entries.Calibration, written: Calibration, vocabulary: int
) -> Calibration:
    """What the model wrote itself, of which `keep: right` takes the right answers, and how many were right."""
    right, keep = written.facts["right"], getattr(entry, "keep", "all")
    kept = [
        sample
        for sample, counts in zip(written.samples, right, strict=True)
        if keep == "all" or counts
    ]
    if len(kept) < min(FEWEST, len(right)):
        raise LaminaError(
            f"{where}.keep: the model answers {len(kept)} of {len(right)} questions right, which are too few to "
            f"calibrate on ({FEWEST} at least). Write keep: all, a larger limit, or more examples (num_fewshot)."
        )
    facts = {key: written.facts[key] for key in ("split", "seed", "source")}
    facts |= {"n_asked": len(right), "n_right": None if None in right else sum(right)}
    facts["temperature"] = getattr(entry, "temperature", None)
    return calibrations.build(
        [replace(each, index=i) for i, each in enumerate(kept)], vocabulary, **facts
    )


def drawn(
    name: str, entry: entries.Calibration, lm: encoding.EncodingLM, style: Style, root: Path
) -> Iterator[tuple[ConfigurableTask, list[Sample]]]:
    """The tasks of calibration `name` with the requests of the questions that are drawn, and samples; none of texts.

    Raises LaminaError if the model shall answer what is not written.
    """
    choices, split, trusted = (
        getattr(entry, key, None) for key in ("choices", "split", "trust_code")
    )
    for source in [name] if isinstance(entry, entries.Choices) else entry.drawn:
        assert isinstance(entry, entries.Task | entries.Tasks | entries.Choices)
        loaded = lm_tasks.load_task(source, root, entry.num_fewshot, choices, split, bool(trusted))
        sizes = [len(task.eval_docs) for task in list_tasks(loaded)]
        own = bool(choices) or lm_tasks.is_own(source, root)
        if isinstance(entry, entries.Tasks):
            counts = [max(1, int(entry.fraction * count)) for count in sizes]
        else:
            check_limit(entry.limit, sum(sizes), f"calibrations.{name}.limit", source)
            counts = split_in_proportion(entry.limit or sum(sizes), sizes)
        for task, count in zip(list_tasks(loaded), counts, strict=True):
            if count:
                if isinstance(entry, entries.Task | entries.Tasks) and entry.own:
                    check_written(task.config.task, task.config.output_type, f"calibrations.{name}")
                    if entry.keep == "right" and "exact_match" not in task.aggregation():
                        raise LaminaError(
                            f"calibrations.{name}.keep: task '{task.config.task}' has no exact_match, so that no "
                            "answer is right or wrong. Write keep: all."
                        )
                yield task, lm_tasks.task_samples(task, lm, count, entry.seed, style, own)


def text_samples(
    documents: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    vocabulary: int | None = None,
) -> list[Sample]:
    """One sample per document: its first `length` tokens, each but the first predicted from those before it.

    Documents of fewer than two tokens are left out, and their number is logged.

    Raises LaminaError if a document holds a token that is not among the `vocabulary` of the model, or none has two
    tokens.
    """
    samples: list[Sample] = []
    for number, text in enumerate(documents):
        tokens = encode(tokenizer, text)[:length]
        check_ids(tokenizer, tokens, vocabulary, f"document {number} ('{text.strip()[:40]}…')")
        if len(tokens) >= 2:
            row = Row(tuple(tokens[:1]), tuple(tokens[1:]), len(text))
            samples.append(Sample(len(samples), "text", 0, (row,), document_hash(text), runs(text)))
    if not samples:
        raise LaminaError(
            "text: no document has two tokens or more. Write a file with longer documents."
        )
    if short := len(documents) - len(samples):
        _logger.warning(
            "%d of %d documents have fewer than two tokens and are left out.", short, len(documents)
        )
    return samples


def mixed(name: str, entry: entries.Mixture, parts: Mapping[str, Calibration]) -> list[Sample]:
    """Samples drawn from `parts` by seed, in shares of the entry's weights: its `limit`, or as many as there are.

    Raises LaminaError if a part has fewer samples than its share.
    """
    weights = [entry.mixture[source] for source in parts]
    # The part that is used up first limits the number of samples.
    bounds = {
        source: len(parts[source].samples) * sum(weights) / entry.mixture[source]
        for source in parts
    }
    scarce = min(bounds, key=lambda source: bounds[source])
    most = int(bounds[scarce] + 1e-9)
    if entry.limit and entry.limit > most:
        raise LaminaError(
            f"calibrations.{name}.limit: {entry.limit} samples are asked for, and the {len(parts[scarce].samples)} of "
            f"'{scarce}' are enough for {most}. Write at most {most}, or more samples of '{scarce}'."
        )
    drawn: list[Sample] = []
    for part, count in zip(
        parts.values(), split_in_proportion(entry.limit or most, weights), strict=True
    ):
        chosen = sorted(random.Random(entry.seed).sample(range(len(part.samples)), count))
        drawn += [part.samples[number] for number in chosen]
    return [replace(sample, index=number) for number, sample in enumerate(drawn)]

"""From a calibration's entry in the config to its samples."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.config import calibrations as entries
from lamina.data import calibrations, documents, hub, lm_tasks, mixture, text
from lamina.data.calibrations import Calibration, Sample
from lamina.data.questions import check_limit
from lamina.data.task_groups import leaves, shares
from lamina.errors import LaminaError
from lamina.models.checkpoint import check_fits, context
from lamina.models.load import load_skeleton, load_tokenizer


def prepare(
    name: str,
    entry: entries.Calibration,
    manifest: dict[str, Any],
    root: Path,
    parts: Mapping[str, entries.Calibration] | None = None,
) -> Calibration:
    """Tokenise the samples of calibration `name` for one model; `parts` are the entries that a mixture is made of.

    Raises
    ------
    LaminaError
        If a task, split or file is missing, there are fewer samples than the entry asks for, or one cannot be encoded
        or does not fit into the model's context.
    """
    tokenizer, skeleton = load_tokenizer(manifest), load_skeleton(manifest)
    if manifest["chat_template"] and not tokenizer.chat_template:
        raise LaminaError(
            f"models: chat_template: the tokenizer of '{manifest['source']}' has no chat template. Write "
            "chat_template: false, or put chat_template.jinja beside its weights."
        )
    facts: dict[str, Any] = {"split": getattr(entry, "split", None), "seed": getattr(entry, "seed", 0)}
    if isinstance(entry, entries.Mixture):
        made = {key: prepare(key, part, manifest, root) for key, part in (parts or {}).items()}
        samples = mixture.mixed(name, entry, made)
        # Questions of one's own are named by their entry.
        own = {key for key, part in (parts or {}).items() if isinstance(part, entries.Choices)}
        facts["source"] = ",".join(key if key in own else made[key].facts["source"] for key in made)
    elif isinstance(entry, entries.Text | entries.Hub):
        limit = context(skeleton.config.to_dict())
        check_fits(f"calibrations.{name}.length", entry.length, limit, manifest["source"])
        if isinstance(entry, entries.Hub):
            texts, facts["source"] = hub.read_texts(entry, root, f"calibrations.{name}"), entry.hub
        else:
            path = documents.corpus_file(entry.text, entry.split, root)
            texts = documents.read_documents(path, entry.documents, f"calibrations.{name}")
            facts["source"] = entry.text
        try:
            samples = text.text_samples(texts, tokenizer, entry.length, int(manifest["vocabulary"]))
        except LaminaError as error:
            raise LaminaError(f"calibrations.{name}: {error}") from error
    else:
        assert isinstance(entry, entries.Task | entries.Tasks | entries.Choices)
        samples = _answered(name, entry, skeleton, tokenizer, manifest["chat_template"], root)
        facts["source"] = entry.choices if isinstance(entry, entries.Choices) else ",".join(entry.drawn)
    return calibrations.build(samples, int(manifest["vocabulary"]), **facts)


def _answered(
    name: str,
    entry: entries.Task | entries.Tasks | entries.Choices,
    skeleton: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chat_template: bool,
    root: Path,
) -> list[Sample]:
    """Samples that have an answer: of lm-eval tasks, or of questions of one's own."""
    lm = lm_tasks.recorder(skeleton, tokenizer)
    if isinstance(entry, entries.Choices):
        tasks = [(name, lm_tasks.load_task(name, root, entry.num_fewshot, choices=entry.choices))]
    else:
        tasks = [
            (
                source,
                lm_tasks.load_task(source, root, entry.num_fewshot, split=entry.split, trust_code=entry.trust_code),
            )
            for source in entry.drawn
        ]
    samples: list[Sample] = []
    for source, loaded in tasks:
        sizes = [len(task.eval_docs) for task in leaves(loaded)]
        if isinstance(entry, entries.Tasks):
            counts = [max(1, int(entry.fraction * count)) for count in sizes]
        else:
            check_limit(entry.limit, sum(sizes), f"calibrations.{name}.limit", source)
            counts = shares(entry.limit or sum(sizes), sizes)
        for task, count in zip(leaves(loaded), counts, strict=True):
            if count:
                samples += lm_tasks.task_samples(task, lm, count, entry.seed, chat_template)
    return [replace(s, index=i) for i, s in enumerate(samples)]

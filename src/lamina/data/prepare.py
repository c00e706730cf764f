"""From a calibration's entry in the config to its samples."""

from pathlib import Path
from typing import Any

from lamina.data import calibrations, documents, lm_tasks, text
from lamina.data.calibrations import Calibration, Sample
from lamina.errors import LaminaError
from lamina.models.context import check_fits, context
from lamina.models.load import load_skeleton, load_tokenizer


def prepare(name: str, entry: dict[str, Any], manifest: dict[str, Any], root: Path) -> Calibration:
    """Tokenise the samples of calibration `name` for one model.

    Raises
    ------
    LaminaError
        If a task, split or file is missing, fewer samples are there than the entry asks for, or one is longer than the
        model's context.
    """
    tokenizer = load_tokenizer(manifest)
    if manifest["chat_template"] and not tokenizer.chat_template:
        raise LaminaError(
            f"models: chat_template: the tokenizer of '{manifest['source']}' has no chat template. Write "
            "chat_template: false, or put chat_template.jinja beside its weights."
        )
    skeleton = load_skeleton(manifest)
    vocabulary = int(manifest["vocabulary"])
    seed, split = entry.get("seed", 0), entry.get("split", "train")
    if "text" in entry:
        path = documents.corpus_file(entry["text"], entry.get("split"), root)
        limit = context(skeleton.config.to_dict())
        check_fits(f"calibrations.{name}.length", entry["length"], limit, manifest["source"])
        texts = documents.read_documents(path, entry.get("documents"), f"calibrations.{name}")
        samples = text.text_samples(texts, tokenizer, entry["length"])
        return calibrations.build(samples, vocabulary, source=entry["text"], split=entry.get("split"), seed=seed)

    lm = lm_tasks.recorder(skeleton, tokenizer)
    if "choices" in entry:
        task = lm_tasks.task_object(name, root, entry.get("num_fewshot"), choices=entry["choices"])
        samples = _limited(name, lm_tasks.task_samples(task, lm, entry.get("limit"), seed), entry.get("limit"))
        return calibrations.build(samples, vocabulary, source=entry["choices"], split=None, seed=seed)

    names = entry.get("tasks") or [entry["task"]]
    samples = []
    for task_name in names:
        task = lm_tasks.task_object(task_name, root, entry.get("num_fewshot"), split=split)
        fraction = entry.get("fraction")
        limit = max(1, int(fraction * len(task.eval_docs))) if fraction else entry.get("limit")
        drawn = lm_tasks.task_samples(task, lm, limit, seed, manifest["chat_template"])
        samples += _limited(f"{name} ({task_name})", drawn, limit)
    numbered = [Sample(i, s.kind, s.gold, s.rows, s.document) for i, s in enumerate(samples)]
    return calibrations.build(numbered, vocabulary, source=",".join(names), split=split, seed=seed)


def _limited(name: str, samples: list[Sample], limit: int | None) -> list[Sample]:
    if limit and len(samples) < limit:
        raise LaminaError(
            f"calibrations.{name}.limit: {limit} samples are asked for, {len(samples)} are there. Write `limit: "
            f"{len(samples)}` or leave it out."
        )
    return samples

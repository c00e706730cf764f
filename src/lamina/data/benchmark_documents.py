"""The documents that a benchmark scores, against which calibrations are checked."""

from pathlib import Path

from lamina.data import documents, lm_tasks
from lamina.options.benchmarks import TaskEntry, TextEntry


def read_benchmark_documents(
    name: str, entry: TaskEntry | TextEntry, root: Path
) -> list[tuple[str, list[str]]]:
    """Question and choices of the documents that benchmark `name` scores; texts have no choices."""
    if isinstance(entry, TextEntry):
        texts = documents.perplexity_texts(entry, root, f"benchmarks.perplexity.{name}")
        return [(text, []) for text in texts if text.strip()]
    task = lm_tasks.load_task(name, root, None, entry.choices, trust_code=entry.trust_code)
    is_own = entry.choices is not None or lm_tasks.is_own(name, root)
    return lm_tasks.test_documents(task, entry.limit, is_own)

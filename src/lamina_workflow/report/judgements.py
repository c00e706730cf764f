"""What `lamina judge` measured: new questions, on a variant and on its base model."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lamina.relevance.statistics import wilson_interval
from lamina.store import checksum
from lamina_workflow.report.paired_tests import compute_paired_test


class Judgement(NamedTuple):
    """Which questions the base model and a variant answer right: 1.0, else 0.0."""

    questions: str
    """Name of their file."""
    variant: str
    metric: str
    base: list[float]
    pruned: list[float]


class ComparedScores(NamedTuple):
    """The scores of a judgement in words, with 95 % intervals."""

    n_samples: int
    base: str
    pruned: str
    difference: str


def read_judgements(files: Iterable[str]) -> list[Judgement]:
    """The judgements in files that `lamina judge` wrote."""
    return [Judgement(**checksum.read_json(file)) for file in files]


def compare_scores(judgement: Judgement) -> ComparedScores:
    """Both scores, and the paired difference."""
    pairs = zip(judgement.pruned, judgement.base, strict=True)
    differences = [pruned - base for pruned, base in pairs]
    test = compute_paired_test([differences])
    is_significant = not test["ci_low"] <= 0 <= test["ci_high"]
    verdict = "significant" if is_significant else "not significant"
    difference = (
        f"{100 * test['difference']:+.1f} points "
        f"[{100 * test['ci_low']:+.1f}, {100 * test['ci_high']:+.1f}], paired, {verdict} "
        f"(p = {test['p_value']:.2g}; {test['n_different']} answers differ)"
    )
    return ComparedScores(
        test["n_samples"],
        _format_accuracy(judgement.base),
        _format_accuracy(judgement.pruned),
        difference,
    )


def _format_accuracy(answers: Sequence[float]) -> str:
    low, high = wilson_interval(sum(answers), len(answers))
    share = 100 * sum(answers) / len(answers)
    return f"{share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"

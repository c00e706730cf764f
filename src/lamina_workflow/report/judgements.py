"""The measurements of `lamina judge`: new questions, on a variant and on its base model."""

import math
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from lamina import paths
from lamina.errors import LaminaError
from lamina.relevance.statistics import Z95, wilson_interval
from lamina.store import checksum
from lamina.variant import Variant
from lamina_workflow.report.paired_tests import compute_paired_test
from lamina_workflow.report.recommendation import advise_questions
from lamina_workflow.runtime.contents import hash_files


class Judgement(NamedTuple):
    """Which questions the base model and a variant answer right: 1.0, else 0.0."""

    questions: str
    """Name of the file of questions."""
    variant: str
    made_from: list[str]
    """Hashes of the files that the variant was made from (`hash_variant`)."""
    metric: str
    base: list[float]
    pruned: list[float]
    chance: float
    """Score of a model that guesses."""


class ComparedScores(NamedTuple):
    """The scores of a judgement in words, with 95 % intervals."""

    n_samples: int
    base: str
    pruned: str
    difference: str
    kept: str
    """Whether the variant keeps the required share."""


class KeptShare(NamedTuple):
    """The share of the base model's score that a variant keeps, and its 95 % interval."""

    share: float
    low: float
    high: float


def hash_variant(variant: str, results: str | Path = paths.RESULTS) -> list[str]:
    """Hashes of the base model's manifest and of the variant's plan, patch and training curve."""
    parsed = Variant.parse(variant)
    manifest = paths.manifest(parsed.model, results)
    files = [manifest, *paths.variant_files(parsed, results).listed()]
    return list(hash_files(files).values())


def read_judgements(files: Iterable[str], results: str | Path = paths.RESULTS) -> list[Judgement]:
    """The judgements in files that `lamina judge` wrote, of variants that are still the same.

    Raises LaminaError if a file lacks something, for example because an earlier lamina wrote it.
    """
    judgements: list[Judgement] = []
    for file in files:
        facts = checksum.read_json(file)
        missing = [name for name in Judgement._fields if name not in facts]
        if missing:
            raise LaminaError(
                f"{file}: {', '.join(missing)} is missing, as in files of an earlier version. "
                f"Delete it (rm '{file}'). `lamina judge {facts.get('variant', 'VARIANT')} "
                f"{facts.get('questions', 'QUESTIONS')}` measures again."
            )
        judgement = Judgement(**facts)
        if judgement.made_from == hash_variant(judgement.variant, results):
            judgements.append(judgement)
    return judgements


def compare_scores(judgement: Judgement, keep: float) -> ComparedScores:
    """Both scores, the paired difference, and whether the variant keeps enough.

    keep: The required share of the base model's score.
    """
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
        _describe_kept(judgement, keep),
    )


def _describe_kept(judgement: Judgement, keep: float) -> str:
    """Yes, no, or undecided, with the share that is kept."""
    n_samples = len(judgement.base)
    asked = f"{100 * keep:g} % of the base model's score"
    base_low, _ = wilson_interval(sum(judgement.base), n_samples)
    kept = measure_kept_share(judgement.base, judgement.pruned)
    if base_low <= judgement.chance or kept is None:
        return (
            f"{asked}: unknown, because {n_samples:,} questions do not show that the base model is "
            "above chance"
        )
    measured = f"it keeps {100 * kept.share:.1f} % [{100 * kept.low:.1f}, {100 * kept.high:.1f}]"
    if kept.low >= keep:
        return f"{asked}: yes, {measured}"
    if kept.high < keep:
        return f"{asked}: no, {measured}"
    half_width = (kept.high - kept.low) / 2
    distance = kept.share - keep
    n_needed = n_samples * (half_width / distance) ** 2 if distance else None
    return (
        f"{asked}: {n_samples:,} questions cannot decide, {measured}; "
        f"{advise_questions(n_samples, n_needed)}"
    )


def measure_kept_share(base: Sequence[float], pruned: Sequence[float]) -> KeptShare | None:
    """The ratio of two shares of right answers to the same questions.

    None if the base model has so few right answers that the ratio is unbounded.

    The interval contains every ratio k for which the mean of pruned - k base differs from zero by
    at most 1.96 standard errors [Fieller 1954]. As in every paired comparison here, two questions
    are added: one that only the variant answers right, and one that only the base model answers
    right [Bonett and Price 2012].
    """
    both_right = sum(map(operator.mul, base, pruned))
    n_questions = len(base) + 2
    base_share = (sum(base) + 1) / n_questions
    pruned_share = (sum(pruned) + 1) / n_questions
    both_share = both_right / n_questions
    # (pruned - k base)^2 (1 + w) <= w (pruned - 2 k both + k^2 base), with w = z^2 / n
    weight = Z95**2 / n_questions
    squared = (1 + weight) * base_share**2 - weight * base_share
    linear = (1 + weight) * base_share * pruned_share - weight * both_share
    constant = (1 + weight) * pruned_share**2 - weight * pruned_share
    if squared <= 0 or not sum(base):
        return None
    root = math.sqrt(max(0.0, linear**2 - squared * constant))
    low = max(0.0, (linear - root) / squared)
    return KeptShare(sum(pruned) / sum(base), low, (linear + root) / squared)


def _format_accuracy(answers: Sequence[float]) -> str:
    low, high = wilson_interval(sum(answers), len(answers))
    share = 100 * sum(answers) / len(answers)
    return f"{share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"

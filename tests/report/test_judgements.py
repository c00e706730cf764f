"""Whether a variant keeps the share of the base model's score that was asked for."""

import re
from pathlib import Path

import numpy as np
import pytest

from lamina.errors import LaminaError
from lamina.relevance.statistics import Z95
from lamina.store import parquet
from lamina_workflow.report.judgements import (
    Judgement,
    compare_scores,
    hash_variant,
    measure_kept_share,
    read_judgements,
)

VARIANT = "m/c/s/removed=1/none/none"


def answer(
    both: int, only_base: int, only_pruned: int, neither: int
) -> tuple[list[float], list[float]]:
    """Right (1) and wrong (0) answers of the base model and of a variant."""
    base = [1.0] * (both + only_base) + [0.0] * (only_pruned + neither)
    pruned = [1.0] * both + [0.0] * only_base + [1.0] * only_pruned + [0.0] * neither
    return base, pruned


def describe_kept(base: list[float], pruned: list[float], chance: float = 0.25) -> str:
    judgement = Judgement("new.jsonl", VARIANT, [], "acc", base, pruned, chance)
    return compare_scores(judgement, 0.95).kept


def test_a_judgement_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    judgement = Judgement("new.jsonl", VARIANT, [], "acc", [1.0], [0.0], 0.5)
    file = tmp_path / "0123.json"
    parquet.write_json(file, judgement._asdict())
    assert read_judgements([str(file)]) == [judgement]

    facts = judgement._asdict()
    del facts["chance"]
    parquet.write_json(file, facts)
    with pytest.raises(LaminaError, match="chance is missing") as refusal:
        read_judgements([str(file)])
    assert f"rm '{file}'" in str(refusal.value)
    assert f"lamina judge {judgement.variant} new.jsonl" in str(refusal.value)


def test_a_judgement_of_a_plan_that_was_replaced_is_left_out(tmp_path: Path) -> None:
    plan = tmp_path / "plans/m/c/s/removed=1.json"
    parquet.write_json(plan, {"units": ["3"]})
    made_from = hash_variant(VARIANT, tmp_path)
    judgement = Judgement("new.jsonl", VARIANT, made_from, "acc", [1.0], [0.0], 0.5)
    file = tmp_path / "0123.json"
    parquet.write_json(file, judgement._asdict())
    assert read_judgements([str(file)], tmp_path) == [judgement]

    parquet.write_json(plan, {"units": ["4"]})
    assert read_judgements([str(file)], tmp_path) == []
    plan.unlink()
    assert read_judgements([str(file)], tmp_path) == []


@pytest.mark.parametrize("counts", [(70, 12, 5, 13), (150, 0, 0, 50), (30, 2, 6, 12)])
def test_the_interval_has_the_shares_that_no_paired_test_refutes(
    counts: tuple[int, int, int, int],
) -> None:
    base, pruned = answer(*counts)
    counted_base = np.array([*base, 1.0, 0.0])
    counted_pruned = np.array([*pruned, 0.0, 1.0])
    shares = np.linspace(0, 2, 20001)
    unrefuted = []
    for share in shares:
        residuals = counted_pruned - share * counted_base
        stderr = residuals.std() / np.sqrt(len(residuals))
        if abs(residuals.mean()) <= Z95 * stderr:
            unrefuted.append(share)

    kept = measure_kept_share(base, pruned)

    assert kept is not None
    assert kept.share == pytest.approx(sum(pruned) / sum(base))
    assert kept.low == pytest.approx(min(unrefuted), abs=2e-4)
    assert kept.high == pytest.approx(max(unrefuted), abs=2e-4)


def test_enough_questions_answer_yes_or_no_and_few_cannot_tell() -> None:
    assert "score: yes, it keeps 99.9 % [" in describe_kept(*answer(780, 10, 9, 201))
    assert "score: no, it keeps 60.0 % [" in describe_kept(*answer(45, 35, 3, 17))
    undecided = describe_kept(*answer(31, 1, 0, 8))
    assert ": 40 questions cannot decide, it keeps 96.9 % [" in undecided
    assert re.search(r"; about [\d,]+ would$", undecided)


def test_nothing_is_kept_of_a_base_model_that_guesses() -> None:
    kept = describe_kept(*answer(20, 5, 5, 20), chance=0.5)

    assert "unknown, because 50 questions do not show that the base model is above" in kept

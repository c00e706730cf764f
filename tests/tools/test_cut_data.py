"""Questions are cut into parts that are large enough to test on."""

import pytest

from tools.cut_data import split


@pytest.mark.parametrize(("n_questions", "sizes"), [(1200, [400, 100, 700]), (500, [200, 50, 250])])
def test_at_least_half_of_the_questions_are_kept_for_the_test(
    n_questions: int, sizes: list[int]
) -> None:
    questions = [
        {"query": f"What is number {number}?", "choices": ["odd", "even"], "gold": number % 2}
        for number in range(n_questions)
    ]
    parts = split(questions)
    assert [len(parts[name]) for name in ("calibration", "validation", "test")] == sizes
    assert {each["query"] for part in parts.values() for each in part} == {
        each["query"] for each in questions
    }

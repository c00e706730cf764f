"""The learning rate rises over the steps of a warm-up, and falls as a cosine to 0."""

import pytest

from lamina.healing import training


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine() -> None:
    """Of ten steps two warm up; step 6 is halfway between the peak and the last step."""
    factors = [training.scale_learning_rate(step, 2, 10) for step in range(1, 11)]

    assert factors[:2] == [0.5, 1.0]
    assert factors[3] == pytest.approx(0.5 + 0.5**1.5)
    assert factors[5] == pytest.approx(0.5)
    assert factors[9] == pytest.approx(0, abs=1e-12)
    assert factors[1:] == sorted(factors[1:], reverse=True)


@pytest.mark.parametrize(
    ("asked", "n_steps", "expected"), [(100, 50, 5), (3, 50, 3), (100, 4, 1), (0, 50, 0)]
)
def test_a_warm_up_takes_at_most_a_tenth_of_all_steps(
    asked: int, n_steps: int, expected: int
) -> None:
    assert training.limit_warmup(asked, n_steps) == expected

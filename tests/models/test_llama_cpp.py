"""llama.cpp runs a cut model as transformers does if the cut keeps the kinds of layers, and another model if not."""

from pathlib import Path

import pytest

from tests.given import llama_cpp

pytestmark = pytest.mark.slow
pytest.importorskip(
    "cyllama", reason="SKIPPED: llama.cpp is not compared. pip install --no-deps cyllama==0.2.18"
)

MOST = 5e-3  # GELU in llama.cpp is a table in 16 bits


@pytest.mark.parametrize(("family", "units", "right"), llama_cpp.CASES)
def test_log_probabilities_are_those_of_transformers(
    family: str, units: list[str], right: bool, tmp_path: Path
) -> None:
    base, converted, taken = llama_cpp.differences(family, units, tmp_path)
    assert base < MOST
    assert (converted < MOST) == (taken < MOST) == right
    if not right:
        assert min(converted, taken) > 10 * base


def test_a_cut_of_a_quantised_file_is_as_near_as_the_whole_file(tmp_path: Path) -> None:
    whole, cut = llama_cpp.quantised_differences(tmp_path)
    assert cut < 2 * whole

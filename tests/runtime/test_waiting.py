"""A step that takes long is not silent."""

import time

import pytest

from lamina_workflow.runtime import waiting


def test_a_long_step_says_how_long_it_has_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)

    with waiting.saying_what_goes_on("Counting"):
        time.sleep(0.3)

    first, *others = capsys.readouterr().err.splitlines()
    assert first == "Counting …"
    assert len(others) >= 2
    assert others[0] == "Counting … 0 s"


def test_it_ends_its_line_when_the_step_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="odd"), waiting.saying_what_goes_on("Counting"):
        raise ValueError("odd")

    assert capsys.readouterr().err == "Counting …\n"

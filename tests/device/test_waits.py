"""How often the host waits for its device in a stage: the table of docs/models.md, kept by counting."""

import re
from pathlib import Path

import pytest

from tests.device.conftest import OnDevices

PAGE = Path(__file__).parents[2] / "docs/models.md"
ROWS = re.findall(r"^\| `([a-z_]+(?:\[[a-z]+\])?)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("stage", "most"), ROWS)
def test_a_stage_waits_for_its_device_as_often_as_the_table_says(stage: str, most: str, on_devices: OnDevices) -> None:
    """A number that is asked for in a loop shows here; fewer waits belong in the table."""
    _, machine = on_devices(stage)
    assert sum(machine.waits.values()) == int(most), dict(machine.places)


def test_the_table_stands_in_the_page() -> None:
    assert len(ROWS) >= 10

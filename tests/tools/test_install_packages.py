"""uv installs from where pip would."""

import os
import subprocess
from pathlib import Path

import pytest

from tools.install_packages import PIP, read_pip_settings, translate_settings

PIP_CONFIG = """
[global]
index-url = https://packages.example.org/simple
extra-index-url =
    https://one.example.org/simple
    https://two.example.org/simple
timeout = 60
[install]
find-links = /wheels
[download]
no-deps = true
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """What pip reads of a file and of the environment."""
    (tmp_path / "pip.conf").write_text(PIP_CONFIG)
    environment = {name: value for name, value in os.environ.items() if "PIP_" not in name}
    environment["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
    environment["PIP_FIND_LINKS"] = "/mine /yours"
    command = [*PIP, "config", "list"]
    return read_pip_settings(subprocess.check_output(command, env=environment, text=True))


def test_uv_is_given_the_indexes_of_pip(settings: dict[str, str]) -> None:
    environment = translate_settings(settings)
    assert environment["UV_DEFAULT_INDEX"] == "https://packages.example.org/simple"
    assert environment["UV_INDEX"].split() == [
        "https://one.example.org/simple",
        "https://two.example.org/simple",
    ]


def test_a_variable_goes_before_a_file(settings: dict[str, str]) -> None:
    assert translate_settings(settings)["UV_FIND_LINKS"] == "/mine,/yours"


def test_a_setting_that_uv_has_not_is_not_dropped() -> None:
    settings = read_pip_settings("global.timeout='60'\nglobal.no-index='true'")
    with pytest.raises(LookupError):
        translate_settings(settings)

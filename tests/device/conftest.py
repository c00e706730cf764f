"""What the tests of devices share: models on disk, and the CPU's results, each made once."""

from collections.abc import Callable
from typing import Any

import pytest

from lamina.models import replacements
from tests.device import world
from tests.device.pretended import Machine, pretended
from tests.device.stages import STAGES
from tests.device.world import World

Made = Callable[..., World]
OnHost = Callable[..., Any]
OnDevices = Callable[..., tuple[Any, Machine]]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A world with an empty place to write, and settings as `World` has them."""
    folder = world.saved(tmp_path_factory.mktemp("world"))
    return lambda **settings: World(folder, tmp_path_factory.mktemp("scratch"), **settings)


@pytest.fixture(scope="session")
def on_host(made: Made) -> OnHost:
    """What a stage gives on the CPU in a world of these settings."""
    known: dict[Any, Any] = {}

    def found(stage: str, **settings: Any) -> Any:
        key = (stage, *sorted(settings.items()))
        if key not in known:
            known[key] = STAGES[stage](made(**settings))
        return known[key]

    return found


@pytest.fixture
def on_devices(made: Made) -> OnDevices:
    """What a stage gives on pretended devices with so many bytes each, and those devices."""

    def found(stage: str, *memory: int, **settings: Any) -> tuple[Any, Machine]:
        replacements._load_sibling.cache_clear()
        with pretended(*memory) as machine:
            result = STAGES[stage](made(**settings))
        replacements._load_sibling.cache_clear()
        return result, machine

    return found

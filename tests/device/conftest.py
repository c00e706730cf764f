"""What the tests of devices share: models on disk, and the CPU's results, each computed once."""

from collections.abc import Callable
from typing import Any

import pytest

from lamina.models import replacements
from tests.device import world
from tests.device.pretended import Machine, pretend_devices
from tests.device.stages import STAGES
from tests.device.world import World

MakeWorld = Callable[..., World]
RunOnCpu = Callable[..., Any]
RunOnDevices = Callable[..., tuple[Any, Machine]]


@pytest.fixture(scope="session")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> MakeWorld:
    """Makes a world with an empty scratch folder and with settings of `World`."""
    folder = world.save_models(tmp_path_factory.mktemp("world"))
    return lambda **settings: World(folder, tmp_path_factory.mktemp("scratch"), **settings)


@pytest.fixture(scope="session")
def run_on_cpu(make_world: MakeWorld) -> RunOnCpu:
    """Gives the result of a stage on the CPU, in a world of these settings."""
    results: dict[Any, Any] = {}

    def run_stage(stage: str, **settings: Any) -> Any:
        key = (stage, *sorted(settings.items()))
        if key not in results:
            results[key] = STAGES[stage](make_world(**settings))
        return results[key]

    return run_stage


@pytest.fixture
def run_on_devices(make_world: MakeWorld) -> RunOnDevices:
    """Gives the result of a stage on pretended devices of these bytes, and the devices."""

    def run_stage(stage: str, *memory_bytes: int, **settings: Any) -> tuple[Any, Machine]:
        replacements._load_sibling.cache_clear()
        with pretend_devices(*memory_bytes) as machine:
            result = STAGES[stage](make_world(**settings))
        replacements._load_sibling.cache_clear()
        return result, machine

    return run_stage

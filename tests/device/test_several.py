"""A model over two and three devices, or with layers that are streamed, gives the CPU's numbers."""

import pytest

from lamina.errors import LaminaError
from lamina.models import devices
from lamina.models.structure import layers_of
from tests.device.compare import list_differences
from tests.device.conftest import MakeWorld, RunOnCpu, RunOnDevices
from tests.device.placed import GIB
from tests.device.pretended import pretend_devices
from tests.device.stages import STAGES
from tests.given.slow import slow_except

EVERY_DAY = (
    "capture_activations",
    "sweep_removal[layer]",
    "sweep_looped",
    "sweep_donors",
    "fit_patch[ghost]",
)
# A load for a notebook, without `device_map`, goes to one device.
SPREAD_STAGES = [name for name in STAGES if name != "load_an_export"]
# Gradients need all weights on a device.
GRADIENT_STAGES = [
    name for name in SPREAD_STAGES if name.startswith(("sweep_gradient", "heal_variant"))
]
STREAMED_STAGES = [name for name in SPREAD_STAGES if name not in GRADIENT_STAGES]


def weight_bytes(make_world: MakeWorld) -> tuple[int, int]:
    """Bytes of the model without its layers, and of one layer."""
    model = make_world().model()
    layers = layers_of(model)
    layer_bytes = devices.count_bytes(layers[0])
    return devices.count_bytes(model) - len(layers) * layer_bytes, layer_bytes


def limit_weights(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, *n_layers: float
) -> tuple[int, ...]:
    """Let each device have weights of so many layers, the first one also those of no layer.

    Returns the memory of the devices: a gigabyte each.
    """
    other_bytes, layer_bytes = weight_bytes(make_world)
    limits = [int(count * layer_bytes) for count in n_layers]
    limits[0] = int(other_bytes + n_layers[0] * layer_bytes)
    visible_devices = devices.visible_devices

    def limited_devices() -> list[tuple[object, int]]:
        pairs = zip(visible_devices(), limits, strict=True)
        return [(device, limit) for (device, _), limit in pairs]

    monkeypatch.setattr(devices, "visible_devices", limited_devices)
    return (GIB,) * len(n_layers)


@pytest.mark.parametrize(
    "n_layers",
    [(3.2, 2.2), pytest.param((2.2, 2.2, 1.2), marks=pytest.mark.slow)],
    ids=["two devices", "three devices"],
)
@pytest.mark.parametrize("stage", slow_except(EVERY_DAY, SPREAD_STAGES))
def test_a_model_over_several_devices_gives_what_it_gives_on_the_cpu(
    stage: str,
    n_layers: tuple[float, ...],
    make_world: MakeWorld,
    run_on_cpu: RunOnCpu,
    run_on_devices: RunOnDevices,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = run_on_cpu(stage)
    memory = limit_weights(make_world, monkeypatch, *n_layers)

    result, machine = run_on_devices(stage, *memory)

    assert not list_differences(expected, result)
    assert all(card.peak for card in machine.cards)


@pytest.mark.parametrize("stage", slow_except(EVERY_DAY, STREAMED_STAGES))
def test_a_model_with_streamed_layers_gives_what_it_gives_on_the_cpu(
    stage: str,
    make_world: MakeWorld,
    run_on_cpu: RunOnCpu,
    run_on_devices: RunOnDevices,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = run_on_cpu(stage)
    memory = limit_weights(make_world, monkeypatch, 3.2)

    result, _ = run_on_devices(stage, *memory)

    assert not list_differences(expected, result)


@pytest.mark.parametrize("stage", slow_except(["sweep_gradient"], GRADIENT_STAGES))
def test_gradients_with_streamed_layers_are_refused(
    stage: str,
    make_world: MakeWorld,
    run_on_devices: RunOnDevices,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = limit_weights(make_world, monkeypatch, 3.2)
    message = "gradients need the weights of all layers on a device"
    with pytest.raises(LaminaError, match=message):
        run_on_devices(stage, *memory)


def test_each_layer_is_put_where_there_is_room(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = limit_weights(make_world, monkeypatch, 2.2, 2.2, 1.2)
    with pretend_devices(*memory):
        layers = layers_of(make_world().model())
        assert [devices.place_of(layer).index for layer in layers] == [0, 0, 1, 1, 2]
        weight_devices = [next(layer.parameters()).device for layer in layers]
        assert [device.index for device in weight_devices] == [0, 0, 1, 1, 2]


def test_a_device_is_filled_up_to_its_share_for_weights(make_world: MakeWorld) -> None:
    other_bytes, layer_bytes = weight_bytes(make_world)
    margin = 4096
    first_memory = int((other_bytes + 3 * layer_bytes + margin) / devices.SHARE)
    second_memory = int((2 * layer_bytes + margin) / devices.SHARE)
    with pretend_devices(first_memory, second_memory):
        layers = layers_of(make_world().model())
        assert [devices.place_of(layer).index for layer in layers] == [0, 0, 0, 1, 1]

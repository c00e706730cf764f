"""A model over two and three pretended devices, or with layers that are streamed, gives the CPU's numbers."""

import pytest

from lamina.errors import LaminaError
from lamina.models import devices
from lamina.models.structure import layers_of
from tests.device.compare import differences
from tests.device.conftest import Made, OnDevices, OnHost
from tests.device.pretended import pretended
from tests.device.stages import STAGES
from tests.given.slow import slow_except

SHARE = devices.SHARE
QUICK = (
    "capture_activations",
    "sweep_removal[layer]",
    "sweep_looped",
    "sweep_donors",
    "fit_patch[ghost]",
)
ALL = slow_except(QUICK, STAGES)
# Healing and gradients need all weights on a device; a load for a notebook goes to one device.
WHOLE = ("sweep_gradient", "heal_variant", "load_an_export")


def sizes(made: Made) -> tuple[int, int]:
    """Bytes of what is no layer of the model, and of one layer."""
    model = made().model()
    layer = devices.count_bytes(layers_of(model)[0])
    return devices.count_bytes(model) - len(layers_of(model)) * layer, layer


def given(made: Made, monkeypatch: pytest.MonkeyPatch, *layers: float) -> tuple[int, ...]:
    """Devices of a gigabyte each, whose room for weights is that of so many layers, on the first beside the rest."""
    rest, layer = sizes(made)
    rooms = [int(rest * (number == 0) + count * layer) for number, count in enumerate(layers)]
    seen = devices.visible_devices
    monkeypatch.setattr(
        devices,
        "visible_devices",
        lambda: [(at, room) for (at, _), room in zip(seen(), rooms, strict=True)],
    )
    return (1 << 30,) * len(layers)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", ALL)
def test_a_model_over_several_devices(
    stage: str,
    count: int,
    made: Made,
    on_host: OnHost,
    on_devices: OnDevices,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if stage == "load_an_export":
        pytest.skip("a load without device_map goes to one device")
    wanted = on_host(stage)
    memory = given(made, monkeypatch, *((3.2, 2.2) if count == 2 else (2.2, 2.2, 1.2)))
    found, machine = on_devices(stage, *memory)
    assert not differences(wanted, found)
    assert all(card.peak for card in machine.cards)


@pytest.mark.parametrize("stage", ALL)
def test_a_model_with_streamed_layers(
    stage: str, made: Made, on_host: OnHost, on_devices: OnDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = None if stage.startswith(WHOLE) else on_host(stage)
    memory = given(made, monkeypatch, 3.2)
    if stage.startswith(("sweep_gradient", "heal_variant")):
        with pytest.raises(
            LaminaError, match="gradients need the weights of all layers on a device"
        ):
            on_devices(stage, *memory)
    elif stage != "load_an_export":
        found, _ = on_devices(stage, *memory)
        assert not differences(wanted, found)


def test_each_layer_stands_where_there_is_room(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = given(made, monkeypatch, 2.2, 2.2, 1.2)
    with pretended(*memory):
        model = made().model()
        places = [devices.place_of(layer).index for layer in layers_of(model)]
        assert places == [0, 0, 1, 1, 2]
        assert [next(layer.parameters()).device.index for layer in layers_of(model)] == places


def test_a_device_that_says_how_much_it_has_is_filled_by_that(made: Made) -> None:
    rest, layer = sizes(made)
    first, second = (int((room + 4096) / SHARE) for room in (rest + 3 * layer, 2 * layer))
    with pretended(first, second):
        assert [devices.place_of(each).index for each in layers_of(made().model())] == [
            0,
            0,
            0,
            1,
            1,
        ]

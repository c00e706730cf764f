"""A model that does not fit its device gives the numbers of one that does, and its weights stay in the checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import capture, sweep, weights
from lamina.errors import LaminaError
from lamina.models import devices
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from lamina.options.repairs import Repair
from lamina.repair import protocol
from tests.given import tiny

CPU = torch.device("cpu")
FAMILIES = ("llama", "gpt2", "bloom", "gemma2")


def room(model: PreTrainedModel, layers: float) -> int:
    """Bytes for what is no layer of a model, and for so many of its layers."""
    each = devices.count_bytes(layers_of(model)[0])
    return devices.count_bytes(model) - len(layers_of(model)) * each + int(layers * each)


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same model undivided, and with room for two of its five layers, of which one must stay free."""
    tiny.model(getattr(request, "param", "llama")).save_pretrained(tmp_path)
    whole, divided = (load_folder(tmp_path, "float32", False) for _ in range(2))
    return whole, devices.spread_model(divided, [(CPU, room(divided, 2.5))])


def questions() -> list[Sample]:
    ids = tiny.tokens(4, 14).tolist()
    rows = [[Row(tuple(line[:9]), tuple(line[9 : 11 + n]), 3) for n in range(2)] for line in ids]
    return [
        Sample(number, "choices", 1, tuple(each), str(number)) for number, each in enumerate(rows)
    ]


@pytest.mark.parametrize("pair", FAMILIES, indirect=True)
def test_logits_sweep_and_capture_are_those_of_the_undivided_model(
    pair: tuple[PreTrainedModel, PreTrainedModel],
) -> None:
    whole, divided = pair
    assert [hasattr(layer, "host_tensors") for model in pair for layer in layers_of(model)] == 6 * [
        False
    ] + 4 * [True]
    ids = tiny.tokens()
    with torch.no_grad():
        assert torch.equal(whole(input_ids=ids).logits, divided(input_ids=ids).logits)
    units = all_units(5, "layer")
    first, second = (sweep.sweep_units(model, questions(), units) for model in pair)
    assert np.array_equal(first.loglikelihood, second.loglikelihood)
    assert np.array_equal(first.cosine, second.cosine, equal_nan=True)
    texts = [tuple(line) for line in ids.tolist()]
    assert capture.capture_similarities(whole, texts) == capture.capture_similarities(
        divided, texts
    )


def mapped() -> list[tuple[int, int]]:
    """Addresses of this process that are pages of checkpoints."""
    lines = [
        line.split()
        for line in Path("/proc/self/maps").read_text().splitlines()
        if ".safetensors" in line
    ]
    return [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]  # type: ignore[misc]


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="Linux says which memory is a file's"
)
def test_weights_stay_in_the_memory_map_and_one_layer_at_a_time_has_a_copy(
    pair: tuple[PreTrainedModel, PreTrainedModel],
) -> None:
    _, divided = pair
    files, layers = mapped(), layers_of(divided)

    def on_disk() -> list[bool]:
        first = [next(layer.parameters()).data_ptr() for layer in layers]
        return [any(start <= address < end for start, end in files) for address in first]

    seen = []
    handles = [
        layer.register_forward_pre_hook(lambda *_: seen.append(on_disk())) for layer in layers
    ]
    with torch.no_grad():
        divided(input_ids=tiny.tokens())
    for handle in handles:
        handle.remove()
    streamed = [hasattr(layer, "host_tensors") for layer in layers]
    assert streamed == [False] + 4 * [True]
    assert seen == [[number != at or not streamed[at] for number in range(5)] for at in range(5)]
    assert all(on_disk())


def test_a_failed_pass_leaves_no_copy_behind(pair: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    _, divided = pair
    before = [parameter.data_ptr() for parameter in divided.parameters()]

    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError

    handle = layers_of(divided)[3].self_attn.register_forward_hook(fail)
    with torch.no_grad(), pytest.raises(torch.cuda.OutOfMemoryError):
        divided(input_ids=tiny.tokens())
    handle.remove()
    assert [parameter.data_ptr() for parameter in divided.parameters()] == before


@pytest.mark.parametrize("method", ["ghost", "linearpatch", "replaceme", "streamline"])
def test_repairs_and_their_variants_are_those_of_the_undivided_model(
    pair: tuple[PreTrainedModel, PreTrainedModel], method: str
) -> None:
    options, repair = Repair.from_options({"method": method}), protocol.load_method(method)
    sources = [protocol.Source([tuple(line) for line in tiny.tokens(6, 12).tolist()])]
    found = []
    for model in pair:
        fits = {
            at: repair.fit(s, options)
            for at, s in repair.collect(model, sources, [(2, 4)], options, 0)
        }
        fitted = {at: protocol.Fitted(method, fit.tensors) for at, fit in fits.items()}
        variant = materialise(model, {"units": ["2", "3"]}, fitted)
        with torch.no_grad():
            found.append(variant(input_ids=tiny.tokens()).logits)
    assert torch.allclose(*found, rtol=1e-5, atol=1e-5)


def test_weights_are_measured_and_gradients_are_refused(
    pair: tuple[PreTrainedModel, PreTrainedModel],
) -> None:
    whole, divided = pair
    assert weights.sum_magnitudes(whole, ["0", "4"]) == weights.sum_magnitudes(divided, ["0", "4"])
    samples = tiny.samples(tiny.tokens().tolist())
    with pytest.raises(LaminaError, match="gradients need the weights .*devices: auto"):
        weights.sweep_rows(divided, samples, ["0"], [], "gradient", 1000)

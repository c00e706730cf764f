"""A model that does not fit its device gives the numbers of one that does.

Its weights stay in the checkpoint, of which one layer at a time is copied to the device.
"""

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
from lamina.repairs import protocol
from tests.given import tiny
from tests.given.variants import compute_logits

CPU = torch.device("cpu")
FAMILIES = ("llama", "gpt2", "bloom", "gemma2")


@pytest.fixture(params=["llama"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a model of five layers."""
    tiny.model(request.param).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def undivided(folder: Path) -> PreTrainedModel:
    return load_folder(folder, "float32", False)


@pytest.fixture
def divided(folder: Path) -> PreTrainedModel:
    """The same model on a device with room for two layers, of which one must stay free."""
    model = load_folder(folder, "float32", False)
    layer_bytes = devices.count_bytes(layers_of(model)[0])
    other_bytes = devices.count_bytes(model) - 5 * layer_bytes
    device_bytes = other_bytes + int(2.5 * layer_bytes)
    return devices.spread_model(model, [(CPU, device_bytes)])


def list_streamed(model: PreTrainedModel) -> list[bool]:
    """Whether each layer is copied to the device for its turn."""
    return [hasattr(layer, "host_tensors") for layer in layers_of(model)]


def two_choice_questions() -> list[Sample]:
    """Four questions whose choices share a context of nine tokens."""
    samples: list[Sample] = []
    for number, token_ids in enumerate(tiny.tokens(4, 14).tolist()):
        context = tuple(token_ids[:9])
        short_choice = Row(context, tuple(token_ids[9:11]), 3)
        long_choice = Row(context, tuple(token_ids[9:12]), 3)
        samples.append(Sample(number, "choices", 1, (short_choice, long_choice), str(number)))
    return samples


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_logits_sweep_and_capture_are_those_of_the_undivided_model(
    undivided: PreTrainedModel, divided: PreTrainedModel
) -> None:
    assert list_streamed(undivided) == [False] * 5
    assert list_streamed(divided) == [False, True, True, True, True]

    token_ids = tiny.tokens()
    assert torch.equal(compute_logits(undivided, token_ids), compute_logits(divided, token_ids))

    units = all_units(5, "layer")
    expected_sweep = sweep.sweep_units(undivided, two_choice_questions(), units)
    found_sweep = sweep.sweep_units(divided, two_choice_questions(), units)
    assert np.array_equal(found_sweep.loglikelihood, expected_sweep.loglikelihood)
    assert np.array_equal(found_sweep.cosine, expected_sweep.cosine, equal_nan=True)

    texts = [tuple(row) for row in token_ids.tolist()]
    expected_rows = capture.capture_similarities(undivided, texts)
    assert capture.capture_similarities(divided, texts) == expected_rows


def checkpoint_pages() -> list[tuple[int, int]]:
    """Start and end of each range of this process's addresses that maps a checkpoint."""
    pages: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if ".safetensors" in line:
            start, _, end = line.split()[0].partition("-")
            pages.append((int(start, 16), int(end, 16)))
    return pages


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="Linux says which memory is a file's"
)
def test_weights_stay_in_the_memory_map_and_one_layer_at_a_time_has_a_copy(
    divided: PreTrainedModel,
) -> None:
    pages = checkpoint_pages()

    def is_mapped(layer: torch.nn.Module) -> bool:
        address = next(layer.parameters()).data_ptr()
        return any(start <= address < end for start, end in pages)

    layers = layers_of(divided)
    copied_layers: list[list[int]] = []

    def record_copies(*_: Any) -> None:
        copied_layers.append([index for index in range(5) if not is_mapped(layers[index])])

    handles = [layer.register_forward_pre_hook(record_copies) for layer in layers]
    compute_logits(divided, tiny.tokens())
    for handle in handles:
        handle.remove()

    assert list_streamed(divided) == [False, True, True, True, True]
    assert copied_layers == [[], [1], [2], [3], [4]]
    assert all(is_mapped(layer) for layer in layers)


def test_a_failed_pass_leaves_no_copy_behind(divided: PreTrainedModel) -> None:
    addresses = [parameter.data_ptr() for parameter in divided.parameters()]

    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError

    handle = layers_of(divided)[3].self_attn.register_forward_hook(fail)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        compute_logits(divided, tiny.tokens())
    handle.remove()

    assert [parameter.data_ptr() for parameter in divided.parameters()] == addresses


def repaired_logits(model: PreTrainedModel, method: str) -> torch.Tensor:
    """Logits of the model without layers 2 and 3, with a repair that was fitted on it."""
    options = Repair.from_options({"method": method})
    repair = protocol.load_method(method)
    texts = [tuple(row) for row in tiny.tokens(6, 12).tolist()]
    fits: dict[tuple[float, float], protocol.Fitted] = {}
    collected = repair.collect(model, [protocol.Source(texts)], [(2, 4)], options, 0)
    for boundary, statistics in collected:
        fit = repair.fit(statistics, options)
        fits[boundary] = protocol.Fitted(method, fit.tensors)
    variant = materialise(model, {"units": ["2", "3"]}, fits)
    return compute_logits(variant, tiny.tokens())


@pytest.mark.parametrize("method", ["ghost", "linearpatch", "replaceme", "streamline"])
def test_repairs_and_their_variants_are_those_of_the_undivided_model(
    undivided: PreTrainedModel, divided: PreTrainedModel, method: str
) -> None:
    found_logits = repaired_logits(divided, method)
    expected_logits = repaired_logits(undivided, method)
    assert torch.allclose(found_logits, expected_logits, rtol=1e-5, atol=1e-5)


def test_magnitudes_of_weights_are_those_of_the_undivided_model(
    undivided: PreTrainedModel, divided: PreTrainedModel
) -> None:
    magnitudes = weights.sum_magnitudes(divided, ["0", "4"])
    assert magnitudes == weights.sum_magnitudes(undivided, ["0", "4"])


def test_gradients_of_a_divided_model_are_refused(divided: PreTrainedModel) -> None:
    samples = tiny.samples(tiny.tokens().tolist())
    with pytest.raises(LaminaError, match="gradients need the weights .*devices: auto"):
        weights.sweep_rows(divided, samples, ["0"], [], "gradient", 1000)

"""A folder of quantised weights is dequantised once: the same numbers in an ordinary checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from lamina.models.checkpoint import is_quantised
from lamina.models.dequantise import dequantise_model
from lamina.models.load import load_folder
from lamina.models.manifest import describe_model
from lamina.models.surgery import apply_edits
from lamina.options.models import Model
from tests.given import tiny
from tests.given.model_folders import State
from tests.given.quantised_models import bitsandbytes, fp8, mxfp4

WRITERS: list[Callable[[Path], State]] = [fp8, mxfp4, bitsandbytes]


class Dequantised(NamedTuple):
    """A quantised folder, what its weights are worth, and the checkpoint that it became."""

    source: Path
    worth: State
    checkpoint: Path
    model: PreTrainedModel


@pytest.fixture(scope="module", params=WRITERS)
def dequantised(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Dequantised:
    folder = tmp_path_factory.mktemp("quantised")
    source = folder / "source"
    worth = request.param(source)
    tiny.tokenizer().save_pretrained(source)
    checkpoint = folder / "checkpoint"
    dequantise_model(source / "config.json", checkpoint, "float32")
    return Dequantised(source, worth, checkpoint, load_folder(checkpoint, "auto", False))


def test_a_quantised_folder_becomes_an_ordinary_checkpoint(dequantised: Dequantised) -> None:
    stored = load_file(dequantised.source / "model.safetensors")
    stored_dtypes = {weight.dtype for weight in stored.values()}
    assert stored_dtypes & {torch.uint8, torch.float8_e4m3fn}
    assert is_quantised(dequantised.source)
    assert not is_quantised(dequantised.checkpoint)
    assert (dequantised.checkpoint / "tokenizer.json").is_file()


def test_weights_are_those_that_quantising_left(dequantised: Dequantised) -> None:
    for name, weight in dequantised.model.state_dict().items():
        assert weight.dtype == torch.float32
        expected = dequantised.worth[name].float()
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-6)


def test_the_manifest_counts_what_is_loaded(dequantised: Dequantised) -> None:
    entry = Model(source=str(dequantised.source))
    manifest = describe_model("mine", entry, dequantised.checkpoint)
    n_parameters = sum(weight.numel() for weight in dequantised.model.parameters())
    assert manifest["parameters"] == n_parameters
    assert manifest["weights_bytes"] == 4 * n_parameters


def test_a_cut_of_it_is_saved_and_loaded_as_any_other_model(
    dequantised: Dequantised, tmp_path: Path
) -> None:
    cut_model = apply_edits(load_folder(dequantised.checkpoint, "auto", False), ["1"])
    cut_model.save_pretrained(tmp_path)
    reloaded_state = load_folder(tmp_path, "auto", False).state_dict()
    for name, weight in cut_model.state_dict().items():
        assert torch.equal(reloaded_state[name], weight)

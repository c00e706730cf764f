"""What only a device shows. Without one, all of this is skipped, and the summary says so."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.engine import footprint, memory, sweep
from lamina.engine.capture import capture_similarities
from lamina.engine.footprint import Shape
from lamina.evaluation import perplexity
from lamina.models import devices
from lamina.models.load import default_device, load_folder, placement_options
from lamina.models.units import all_units
from lamina_workflow.runtime import devices as gpu_lock
from tests import ROOT
from tests.given import tiny
from tests.given.cut_models import random_samples

REFERENCE = ROOT / "resources/reference"
LAYERS = all_units(5, "layer")
needs_one_device = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: NOT tested"
)
needs_two_devices = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="fewer than two CUDA devices: NOT tested"
)
pytestmark = pytest.mark.gpu


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A process that may have 256 MiB of its device."""
    torch.cuda.empty_cache()
    total_memory = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2**28 / total_memory)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@needs_one_device
def test_a_pass_out_of_memory_is_halved_until_it_fits(little_memory: None) -> None:
    model = tiny.model(hidden_size=512, intermediate_size=2048).cuda()
    samples = random_samples(0, count=300)

    small_batches = sweep.sweep_units(model, samples, LAYERS, token_budget=512, outputs=False)
    one_batch = sweep.sweep_units(model, samples, LAYERS, token_budget=10**6, outputs=False)

    assert torch.cuda.memory_stats()["num_ooms"] > 0
    np.testing.assert_allclose(one_batch.loglikelihood, small_batches.loglikelihood, atol=1e-3)


@needs_one_device
def test_bfloat16_gives_the_mean_log_likelihoods_of_float32() -> None:
    samples = random_samples(0, count=40)

    float32_scores = sweep.sweep_units(tiny.model().cuda(), samples, LAYERS)
    bfloat16_model = tiny.model().to("cuda", torch.bfloat16)
    bfloat16_scores = sweep.sweep_units(bfloat16_model, samples, LAYERS)

    expected = float32_scores.loglikelihood.mean(axis=1)
    means = bfloat16_scores.loglikelihood.mean(axis=1)
    np.testing.assert_allclose(means, expected, rtol=0.03)


@needs_one_device
def test_capture_needs_on_a_device_what_is_predicted() -> None:
    model = tiny.model(hidden_size=512, intermediate_size=1408, depth=16).to("cuda", torch.bfloat16)
    sequences = [tuple(token_ids) for token_ids in tiny.tokens(64, 120).tolist()]
    capture_similarities(model, sequences[:2], 64)  # loads kernels
    torch.cuda.reset_peak_memory_stats()
    memory_before = torch.cuda.memory_allocated()

    capture_similarities(model, sequences, 8192)

    needed_memory = torch.cuda.max_memory_allocated() - memory_before
    predicted_memory = footprint.capture_bytes(Shape.of(model.config, 2), 8192, 120, 64)
    assert needed_memory == pytest.approx(predicted_memory, rel=0.15)


@needs_one_device
def test_at_most_half_of_a_device_is_available_to_a_pass() -> None:
    model = tiny.model().cuda()
    _, total_memory = torch.cuda.mem_get_info()
    assert 0 < memory.available_bytes(model) <= total_memory // 2


def nll_per_token(model: PreTrainedModel) -> float:
    """Of random texts, in nats."""
    texts = [tuple(token_ids) for token_ids in tiny.tokens(8, 60).tolist()]
    windows = [perplexity.Window(text, 1, index) for index, text in enumerate(texts)]
    documents = perplexity.document_nll(model, windows, len(windows), "a model")
    return sum(nll for nll, _ in documents) / sum(n_tokens for _, n_tokens in documents)


@pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="no bitsandbytes: NOT tested"
)
def test_weights_in_four_bits_predict_text_nearly_as_well() -> None:
    four_bits = placement_options(None, True, "bfloat16")
    exact_model = load_folder(REFERENCE, "float32", False).to(default_device())
    rounded_model = load_folder(REFERENCE, "bfloat16", False, **four_bits)
    assert nll_per_token(rounded_model) == pytest.approx(nll_per_token(exact_model), rel=0.1)


@needs_two_devices
def test_a_model_spread_over_devices_gives_what_it_gives_on_one() -> None:
    samples = random_samples(0, count=20)
    expected = sweep.sweep_units(tiny.model().to("cuda:0"), samples, LAYERS)

    model = tiny.model()
    weight_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    limit = int(0.7 * weight_bytes)
    limits = [(torch.device("cuda", index), limit) for index in range(2)]
    scores = sweep.sweep_units(devices.spread_model(model, limits), samples, LAYERS)

    assert len({weight.device for weight in model.parameters()}) == 2
    np.testing.assert_allclose(scores.loglikelihood, expected.loglikelihood, atol=1e-4)


JOB_ON_A_DEVICE = """
import os, time, torch
torch.zeros(1).cuda()
time.sleep(1)
print(os.environ["CUDA_VISIBLE_DEVICES"])
"""


@needs_two_devices
def test_jobs_at_the_same_time_compute_on_different_devices() -> None:
    wait_for_device = [sys.executable, "-m", "lamina_workflow.runtime.devices", "1"]
    command = [*wait_for_device, sys.executable, "-c", JOB_ON_A_DEVICE]
    environment = os.environ | {"PYTHONPATH": str(Path(gpu_lock.__file__).parents[2])}
    jobs = []
    for _ in range(2):
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        jobs.append(job)
    outputs = [job.communicate()[0].strip() for job in jobs]
    assert outputs[0] != outputs[1]


@needs_one_device
def test_the_benchmark_of_scale_runs_on_the_device() -> None:
    command = [sys.executable, str(ROOT / "benchmarks/scale.py"), "--preset", "smoke", "--json"]
    command += ["--stages", "capture", "removal_choices", "benchmark"]

    report = json.loads(subprocess.check_output(command, text=True))

    for row in report["stages"]:
        assert row["peak_bytes"] > 0
        assert row["utilisation"] > 0

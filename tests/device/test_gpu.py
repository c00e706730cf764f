"""What only a device shows. Without one all of this is skipped, and the summary of the tests says so."""

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

from lamina.engine import footprint, memory, sweep
from lamina.engine.capture import capture_similarities
from lamina.engine.footprint import Shape
from lamina.evaluation import perplexity
from lamina.models import devices
from lamina.models.load import default_device, load_folder, placement_options
from lamina.models.units import all_units
from lamina_workflow.runtime import devices as gpu_lock
from tests.given import tiny
from tests.given.cut_models import random_samples

REFERENCE = Path(__file__).parents[2] / "resources/reference"
needs_one = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: NOT tested")
needs_two = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="fewer than two CUDA devices: NOT tested"
)
pytestmark = pytest.mark.gpu


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A process that may have 256 MB of its device."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        2**28 / torch.cuda.get_device_properties(0).total_memory
    )
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@needs_one
def test_a_pass_out_of_memory_is_halved_until_it_fits(little_memory: None) -> None:
    model = tiny.model(hidden_size=512, intermediate_size=2048).cuda()
    samples = random_samples(0, count=300)
    units = all_units(5, "layer")
    small, large = (
        sweep.sweep_units(model, samples, units, token_budget=tokens, outputs=False)
        for tokens in (512, 10**6)
    )
    assert torch.cuda.memory_stats()["num_ooms"] > 0
    np.testing.assert_allclose(large.loglikelihood, small.loglikelihood, atol=1e-3)


@needs_one
def test_bfloat16_ranks_layers_as_float32_does() -> None:
    samples, units = random_samples(0, count=40), all_units(5, "layer")
    wide = sweep.sweep_units(tiny.model().cuda(), samples, units)
    narrow = sweep.sweep_units(tiny.model().to("cuda", torch.bfloat16), samples, units)
    mean = [scores.loglikelihood.mean(axis=1) for scores in (wide, narrow)]
    np.testing.assert_allclose(mean[1], mean[0], rtol=0.03)


@needs_one
def test_capture_needs_on_a_device_what_is_predicted() -> None:
    model = tiny.model(hidden_size=512, intermediate_size=1408, depth=16).to("cuda", torch.bfloat16)
    sequences = [tuple(ids) for ids in tiny.tokens(64, 120).tolist()]
    capture_similarities(model, sequences[:2], 64)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    capture_similarities(model, sequences, 8192)
    predicted = footprint.capture_bytes(Shape.of(model.config, 2), 8192, 120, 64)
    assert torch.cuda.max_memory_allocated() - before == pytest.approx(predicted, rel=0.15)
    assert 0 < memory.available_bytes(model) <= torch.cuda.mem_get_info()[1] // 2


@pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="no bitsandbytes: NOT tested"
)
def test_weights_in_four_bits_predict_text_nearly_as_well() -> None:
    exact = load_folder(REFERENCE, "float32", False).to(default_device())
    rounded = load_folder(REFERENCE, "bfloat16", False, **placement_options(None, True, "bfloat16"))
    cut = [perplexity.Window(tuple(ids), 1, n) for n, ids in enumerate(tiny.tokens(8, 60).tolist())]
    mean = [
        sum(nll for nll, _ in scores) / sum(tokens for _, tokens in scores)
        for model in (exact, rounded)
        for scores in [perplexity.document_nll(model, cut, len(cut), "a model")]
    ]
    assert mean[1] == pytest.approx(mean[0], rel=0.1)


@needs_two
def test_a_model_spread_over_devices_gives_what_it_gives_on_one() -> None:
    samples, units = random_samples(0, count=20), all_units(5, "layer")
    alone = sweep.sweep_units(tiny.model().to("cuda:0"), samples, units)
    model = tiny.model()
    half = int(0.7 * sum(weight.numel() * weight.element_size() for weight in model.parameters()))
    places = [(torch.device("cuda", number), half) for number in range(2)]
    spread = sweep.sweep_units(devices.spread_model(model, places), samples, units)
    assert len({weight.device for weight in model.parameters()}) == 2
    np.testing.assert_allclose(spread.loglikelihood, alone.loglikelihood, atol=1e-4)


@needs_two
def test_jobs_at_a_time_compute_on_devices_of_their_own() -> None:
    script = "import os, torch, time; torch.zeros(1).cuda(); time.sleep(1); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    command = [
        sys.executable,
        "-m",
        "lamina_workflow.runtime.devices",
        "1",
        sys.executable,
        "-c",
        script,
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(gpu_lock.__file__).parents[2])}
    jobs = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert len({job.communicate()[0].strip() for job in jobs}) == 2


@needs_one
def test_the_benchmark_of_scale_runs_on_the_device() -> None:
    script = Path(__file__).parents[2] / "benchmarks/scale.py"
    told = ["--preset", "smoke", "--json", "--stages", "capture", "removal_choices", "benchmark"]
    rows = json.loads(subprocess.check_output([sys.executable, str(script), *told], text=True))[
        "stages"
    ]
    assert all(row["peak_bytes"] > 0 and row["utilisation"] > 0 for row in rows)

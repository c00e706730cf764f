"""A healing that was killed continues at the last saved step, to the last bit as if nothing had
happened.
"""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.data import calibrations
from lamina.healing import full, lora, training
from lamina.healing.batches import TrainingSource
from lamina.healing.full import Full
from lamina.healing.lora import Lora
from lamina.models import workload
from lamina.options import healings
from lamina.repairs import patch
from lamina.store import parquet
from lamina.store.unfinished import Progress, digest_settings
from lamina_workflow.stages.heal import HealVariant
from tests.families import configurations
from tests.given import scripts, tiny
from tests.healing.examples import FAST_OPTIONS, REPAIRED_UNITS, fitted_patches, make_samples

OPTIONS: dict[str, Any] = {
    **FAST_OPTIONS,
    "dropout": 0.1,
    "train": "both",
    "objective": "distill",
}


class InterruptedProgress(Progress):
    """Ends the training after some saves, as far as a test can end its own process."""

    saves_left = 0
    layer_tokens = 0.0

    def save(self, tensors: Any, facts: Any) -> None:
        super().save(tensors, facts)
        self.layer_tokens = facts["layer_tokens"]
        self.saves_left -= 1
        if self.saves_left == 0:
            raise KeyboardInterrupt


def heal(progress: Progress | None) -> tuple[dict[str, torch.Tensor], list[training.TrainingRow]]:
    """The weights and the curve of a training on two sources."""
    sources = [
        TrainingSource(make_samples(24)),
        TrainingSource(make_samples(32, "text")[24:], 0.5),
    ]
    plan = {"units": REPAIRED_UNITS}
    options = Lora(**{**OPTIONS, "epochs": 3})
    model = tiny.model()
    workload.count_work(model)  # as a loaded model is
    healed, rows = lora.heal(model, plan, fitted_patches(), sources, options, progress)
    weights = {name: weight.detach() for name, weight in healed.weights.items()}
    return weights, rows


@pytest.mark.parametrize("n_saves", [1, 5])
def test_any_saved_step_leads_to_the_same_weights(
    n_saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_INTERVAL", 2)
    expected_weights, expected_rows = heal(None)

    interrupted = InterruptedProgress(tmp_path / "progress.safetensors", "key")
    interrupted.saves_left = n_saves
    with pytest.raises(KeyboardInterrupt):
        heal(interrupted)
    torch.rand(7)  # as whatever else draws random numbers
    earlier = workload.done.earlier
    weights, rows = heal(Progress(interrupted.file, "key"))
    assert workload.done.earlier == earlier + interrupted.layer_tokens > earlier
    assert rows == expected_rows
    for name, weight in weights.items():
        assert torch.equal(weight, expected_weights[name])


def test_a_training_of_all_weights_continues_where_an_image_tower_has_no_gradient(
    tmp_path: Path,
) -> None:
    model = configurations.seeing("gemma3")
    workload.count_work(model)

    def heal_fully(progress: Progress | None) -> dict[str, torch.Tensor]:
        options = Full(epochs=2, batch=8, warmup_steps=1, objective="lm")
        sources = [TrainingSource(make_samples(24))]
        return full.heal(model, {"units": ["1"]}, None, sources, options, progress)[0]

    interrupted = InterruptedProgress(tmp_path / "progress.safetensors", "key")
    interrupted.saves_left = 1
    with pytest.raises(KeyboardInterrupt):
        heal_fully(interrupted)
    weights = heal_fully(Progress(interrupted.file, "key"))
    for name, weight in heal_fully(None).items():
        assert torch.equal(weights[name], weight)


def test_progress_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.safetensors", "key")
    rows = [{"step": step, "loss": 0.1 + 0.2} for step in range(50_000)]
    progress.save({"weight": torch.ones(2)}, {"rows": rows})
    tensors, facts = progress.load() or ({}, {})
    assert torch.equal(tensors["weight"], torch.ones(2))
    assert facts == {"rows": rows}
    progress.remove()
    assert progress.load() is None
    assert not list(tmp_path.iterdir())


def test_a_changed_option_or_file_begins_anew(tmp_path: Path) -> None:
    input_file = tmp_path / "input"
    progress_file = tmp_path / "progress.safetensors"
    input_file.write_text("a")
    Progress(progress_file, digest_settings({"rank": 2}, input_file)).save({}, {"rows": []})
    assert Progress(progress_file, digest_settings({"rank": 2}, input_file)).load() is not None
    assert Progress(progress_file, digest_settings({"rank": 4}, input_file)).load() is None
    input_file.write_text("b")
    assert Progress(progress_file, digest_settings({"rank": 2}, input_file)).load() is None


def write_inputs(folder: Path) -> None:
    """The files that a job of rule heal_variant reads."""
    tiny.model().save_pretrained(folder / "model")
    manifest = {
        "path": str(folder / "model"),
        "source": "tiny",
        "dtype": "float32",
        "trust_remote_code": False,
    }
    plan = {"units": REPAIRED_UNITS, "removed": 3}
    parquet.write_text(folder / "manifest.json", json.dumps(manifest))
    parquet.write_text(folder / "plan.json", json.dumps(plan))
    tensors = {boundary: fitted.tensors for boundary, fitted in fitted_patches().items()}
    patch.write_patch(folder / "patch.safetensors", "ghost", patch.name_tensors(3, tensors))
    for name, kind in (("own", "choices"), ("corpus", "text")):
        calibration = calibrations.build_calibration(
            make_samples(40, kind), tiny.VOCABULARY, source=name, split="train", seed=0
        )
        calibrations.write_calibration(folder / f"{name}.parquet", calibration)


def make_job(folder: Path, output: str) -> HealVariant:
    """A job on the files of `write_inputs` that trains for about a second."""
    options = {
        **OPTIONS,
        "method": "lora",
        "data": {"own": 1, "corpus": 0.5},
        "epochs": 12,
    }
    return HealVariant(
        variant="m/own/s/removed=3/ghost/lora",
        healing=healings.Healing.from_options(options),
        weights=[("corpus", 0.5), ("own", 1.0)],
        repairs=["lamina.repairs.methods.ghost"],
        manifest=str(folder / "manifest.json"),
        calibration=str(folder / "own.parquet"),
        data={"corpus": str(folder / "corpus.parquet")},
        plan=str(folder / "plan.json"),
        patch=str(folder / "patch.safetensors"),
        output=str(folder / output / "training.parquet"),
    )


def kill_after_first_save(job: HealVariant) -> None:
    """Run a job in a process of its own, and kill it as soon as its progress is saved."""
    environment = scripts.ENVIRONMENT | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(scripts.script_command(job), env=environment)
    progress_file = Path(job.output).parent / ".progress.safetensors"
    while not progress_file.is_file() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    files = [path for path in progress_file.parent.iterdir() if path.suffix != ".tmp"]
    assert files == [progress_file]


@pytest.mark.slow
def test_a_killed_job_continues_and_writes_the_same_bytes(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    job = make_job(tmp_path, "output")
    folder = tmp_path / "output"
    kill_after_first_save(job)
    scripts.run_in_process(job)
    shutil.move(folder, tmp_path / "resumed")
    scripts.run_in_process(job)

    names = ["adapter_config.json", "adapter_model.safetensors", "training.parquet"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert sorted(path.name for path in (tmp_path / "resumed").iterdir()) == names
    for name in names[:2]:
        assert (folder / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    uninterrupted_curve = parquet.read_table(folder / "training.parquet")
    assert parquet.read_table(tmp_path / "resumed/training.parquet").equals(uninterrupted_curve)

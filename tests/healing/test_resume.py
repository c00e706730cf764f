"""A healing that was killed goes on at the last saved step, to the last bit as if nothing had happened."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.config import healings
from lamina.data import calibrations
from lamina.healing import lora, training
from lamina.healing.lora import Lora
from lamina.healing.training import Source
from lamina.repair import patch
from lamina.stages.heal import HealVariant
from lamina.store import parquet as store
from lamina.store.unfinished import Progress, digest
from tests.given import scripts, tiny
from tests.healing.test_lora import FAST, samples
from tests.healing.test_trained_parts import UNITS, fitted

SETTINGS: dict[str, Any] = {**FAST, "dropout": 0.1, "train": "both", "objective": "distill"}


class Killed(Progress):
    """Ends the process that it belongs to, as far as a test can, after so many saves."""

    left = 0

    def save(self, *arguments: Any) -> None:
        super().save(*arguments)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("saves", [1, 3, 5])
def test_any_saved_step_leads_to_the_same_weights(
    saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_STEPS", 2)
    data = [Source(samples(24)), Source(samples(32, "text")[24:], 0.5)]

    def heal(progress: Progress | None) -> tuple[dict[str, torch.Tensor], Any]:
        healed, rows = lora.heal(
            tiny.model(),
            {"units": UNITS},
            fitted(),
            data,
            Lora(**{**SETTINGS, "epochs": 3}),
            progress,
        )
        return {name: weight.detach() for name, weight in healed.weights.items()}, rows

    wanted, rows = heal(None)
    killed = Killed(tmp_path / "progress.safetensors", "key")
    killed.left = saves
    with pytest.raises(KeyboardInterrupt):
        heal(killed)
    torch.rand(7)  # whatever else draws random numbers
    again, more = heal(Progress(killed.file, "key"))
    assert more == rows and all(torch.equal(again[name], wanted[name]) for name in wanted)


def test_a_changed_setting_or_file_begins_anew(tmp_path: Path) -> None:
    read = tmp_path / "read"
    read.write_text("a")
    key = digest({"rank": 2}, read)
    saved = Progress(tmp_path / "progress.safetensors", key)
    saved.save({"weight": torch.ones(2)}, {"rows": [{"loss": 0.1 + 0.2}]})
    found = Progress(saved.file, digest({"rank": 2}, read)).load()
    assert found is not None and torch.equal(found[0]["weight"], torch.ones(2))
    assert found[1]["rows"][0]["loss"] == 0.1 + 0.2
    assert Progress(saved.file, digest({"rank": 4}, read)).load() is None
    read.write_text("b")
    assert Progress(saved.file, digest({"rank": 2}, read)).load() is None
    many = {"rows": [{"step": number, "loss": 0.1} for number in range(50_000)]}
    saved.save({}, many)
    assert saved.load() == ({}, many)
    saved.remove()
    assert saved.load() is None and [path.name for path in tmp_path.iterdir()] == ["read"]


def test_a_killed_job_goes_on_and_writes_the_same_bytes(tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path / "model")
    manifest = {
        "path": str(tmp_path / "model"),
        "source": "tiny",
        "dtype": "float32",
        "trust_remote_code": False,
    }
    store.write_text(tmp_path / "manifest.json", json.dumps(manifest))
    store.write_text(tmp_path / "plan.json", json.dumps({"units": UNITS, "removed": 3}))
    tensors = {boundary: found.tensors for boundary, found in fitted().items()}
    patch.save(tmp_path / "patch.safetensors", "ghost", patch.tensors(3, tensors))
    for name, kind in (("own", "choices"), ("corpus", "text")):
        made = calibrations.build(
            samples(40, kind), tiny.VOCABULARY, source=name, split="train", seed=0
        )
        calibrations.write(tmp_path / f"{name}.parquet", made)
    options = {**SETTINGS, "method": "lora", "data": {"own": 1, "corpus": 0.5}, "epochs": 12}

    def job(output: str) -> HealVariant:
        files = {"manifest": "manifest.json", "calibration": "own.parquet", "plan": "plan.json"}
        files |= {"patch": "patch.safetensors", "output": f"{output}/training.parquet"}
        told: dict[str, Any] = {name: str(tmp_path / file) for name, file in files.items()}
        told |= {
            "data": {"corpus": str(tmp_path / "corpus.parquet")},
            "repairs": ["lamina.repair.methods.ghost"],
        }
        told |= {
            "weights": [("corpus", 0.5), ("own", 1.0)],
            "healing": healings.Healing.from_options(options),
        }
        return HealVariant(variant="m/own/s/removed=3/ghost/lora", **told)

    environment = scripts.ENVIRONMENT | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = subprocess.Popen(scripts.command(job("killed")), env=environment)
    progress = tmp_path / "killed/.progress.safetensors"
    while not progress.is_file() and killed.poll() is None:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL and progress.is_file()
    assert [path.name for path in progress.parent.iterdir() if path.suffix != ".tmp"] == [
        progress.name
    ]
    scripts.run(job("killed"))
    shutil.move(tmp_path / "killed", tmp_path / "whole")
    scripts.run(job("killed"))
    written = [
        sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("whole", "killed")
    ]
    assert written == [["adapter_config.json", "adapter_model.safetensors", "training.parquet"]] * 2
    for name in written[0]:
        one, other = (tmp_path / folder / name for folder in ("whole", "killed"))
        if name != "training.parquet":
            assert one.read_bytes() == other.read_bytes(), name
        else:
            assert store.read(one).equals(store.read(other))

"""Sweeps and benchmarks that were killed go on from what they had measured, and end with the same numbers."""

import json
import signal
import subprocess
import time
from itertools import count as count_from
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lamina.data import calibrations
from lamina.engine import sweep
from lamina.engine.session import Session
from lamina.evaluation import measuring
from lamina.models.structure import layers_of
from lamina.paths import VariantFiles
from lamina.store import parquet
from lamina.store import unfinished as resume
from lamina.store.unfinished import Progress
from lamina.variant import Variant
from lamina_workflow.stages.benchmark import BenchmarkPerplexity
from lamina_workflow.stages.job import Job
from lamina_workflow.stages.sweep import SweepUnits
from tests import ROOT
from tests.evaluation.test_evaluation import documents
from tests.given import scripts, tiny
from tests.given.cut_models import random_samples
from tests.healing.examples import make_samples

UNITS = ["0", "2", "4"]


class Killed(KeyboardInterrupt):
    pass


def count(model: Any) -> list[int]:
    """Grows by the tokens that go through the first layer."""
    ran: list[int] = []
    layers_of(model)[0].register_forward_hook(
        lambda module, inputs, output: ran.append(inputs[0].shape[1])
    )
    return ran


@pytest.mark.parametrize("batches", [1, 4])
def test_a_sweep_goes_on_with_what_is_left(
    batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = tiny.model(), make_samples(30)
    wanted = sweep.sweep_units(model, asked, UNITS, token_budget=100).rows(UNITS)
    ran = count(model)
    sweep.sweep_units(model, asked, UNITS, token_budget=100)
    whole, progress = len(ran), Progress(tmp_path / "unfinished", "key")
    save, saves = Progress.save, count_from(1)

    def killing(self: Progress, *given: Any) -> None:
        save(self, *given)
        if next(saves) == batches:
            raise Killed

    monkeypatch.setattr(resume, "SECONDS", 0.0)
    with monkeypatch.context() as broken, pytest.raises(Killed):
        broken.setattr(Progress, "save", killing)
        sweep.sweep_units(model, asked, UNITS, token_budget=100, progress=progress)
    ran.clear()
    found = sweep.sweep_units(model, asked, UNITS, token_budget=100, progress=progress)
    assert found.rows(UNITS) == wanted
    assert len(ran) == whole - batches
    # What belongs to another job is no beginning of this one.
    ran.clear()
    other = Progress(progress.file, "other")
    assert (
        sweep.sweep_units(model, asked, UNITS, token_budget=100, progress=other).rows(UNITS)
        == wanted
    )
    assert len(ran) == whole


@pytest.mark.parametrize("passes", [1, 2, 5, 8])
def test_a_sweep_broken_off_counts_nothing_twice(
    passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for few streams a batch takes several passes, and choices that share no line stand in several batches:
    distances of outputs are sums over these.
    """
    model, asked, ran = tiny.model("bloom"), random_samples(12), list[int]()
    wanted = sweep.sweep_units(model, asked, UNITS, token_budget=30).rows(UNITS)
    forward = Session._forward

    def killing(*given: Any) -> None:
        if len(ran) == passes:
            raise Killed
        ran.append(1)
        forward(*given)

    monkeypatch.setattr(resume, "SECONDS", 0.0)
    progress = Progress(tmp_path / "unfinished", "key")
    with monkeypatch.context() as broken, pytest.raises(Killed):
        broken.setattr(Session, "_forward", killing)
        sweep.sweep_units(model, asked, UNITS, token_budget=30, progress=progress)
    assert (
        sweep.sweep_units(model, asked, UNITS, token_budget=30, progress=progress).rows(UNITS)
        == wanted
    )


def files(folder: Path, count: int) -> str:
    """A model of eight layers and a calibration; the manifest's path."""
    tiny.model(depth=8).save_pretrained(folder / "model")
    about = {
        "path": str(folder / "model"),
        "source": "tiny",
        "dtype": "float32",
        "trust_remote_code": False,
    }
    parquet.write_text(folder / "manifest.json", json.dumps(about | {"n_layers": 8}))
    made = calibrations.build_calibration(
        make_samples(count), tiny.VOCABULARY, source="own", split="train", seed=0
    )
    calibrations.write_calibration(folder / "own.parquet", made)
    return str(folder / "manifest.json")


def kill(job: Job, unfinished: Path, folder: Path) -> None:
    """Run a job in a process of its own, and kill that as soon as it has kept something."""
    slow = folder / "slow.py"
    # As if a batch took long: otherwise a job of a test ends before anything is kept.
    slow.write_text(
        "import sys, time, runpy\n"
        "from lamina.store import unfinished\n"
        "from lamina.engine.session import Session\n"
        "forward = Session._forward\n"
        "Session._forward = lambda *given: (forward(*given), time.sleep(0.2))\n"
        "unfinished.SECONDS = 0.0\n"
        "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
    )
    python, _, *arguments = scripts.script_command(job)
    process = subprocess.Popen([python, str(slow), *arguments], env=scripts.ENVIRONMENT, cwd=ROOT)
    while not unfinished.is_file() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and unfinished.is_file()


def test_a_killed_sweep_goes_on_and_leaves_the_same_table(tmp_path: Path) -> None:
    given = {
        "manifest": files(tmp_path, 60),
        "calibration": str(tmp_path / "own.parquet"),
        "pass_": "removal",
    }
    given |= {"units": "layer", "block": 0, "blocks": 1, "tokens": 100}
    keys = {"model": "m", "calibration": "own", "selector": "base", "removed": 0}
    job = SweepUnits(**given, keys=keys, output=str(tmp_path / "killed.parquet"))
    unfinished = tmp_path / "killed.parquet.unfinished"
    kill(job, unfinished, tmp_path)
    begun = Progress(unfinished, "").file.stat().st_size
    assert begun and not (tmp_path / "killed.parquet").exists()
    scripts.run_in_process(job)
    assert not unfinished.exists()
    whole = SweepUnits(**given, keys=keys, output=str(tmp_path / "whole.parquet"))
    scripts.run_in_process(whole)
    assert parquet.read_table(tmp_path / "killed.parquet").equals(
        parquet.read_table(tmp_path / "whole.parquet")
    )


def test_a_killed_benchmark_goes_on_within_its_pass(tmp_path: Path) -> None:
    manifest = files(tmp_path, 4)
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    texts = [{"text": text} for text in documents() * 40 if len(text.split()) > 1]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))

    def job(name: str) -> BenchmarkPerplexity:
        text: Any = {"text": str(tmp_path / "texts.jsonl"), "window": 64}
        written = {
            "output": str(tmp_path / f"{name}.parquet"),
            "samples": str(tmp_path / f"{name}_samples.parquet"),
        }
        return BenchmarkPerplexity(
            manifest=manifest, variants=[str(Variant.base("m"))], name="t", text=text, **written
        )

    kill(job("killed"), tmp_path / "killed.parquet.unfinished.0", tmp_path)
    scripts.run_in_process(job("killed"))
    scripts.run_in_process(job("whole"))
    for name in ("", "_samples"):
        one, other = (tmp_path / f"{each}{name}.parquet" for each in ("killed", "whole"))
        assert parquet.read_table(one).equals(parquet.read_table(other))
    assert not list(tmp_path.glob("*.unfinished*"))


def test_variants_that_were_scored_are_not_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = tiny.model(), list[str]()
    monkeypatch.setattr(resume, "SECONDS", 0.0)
    bases = [Variant.base("m"), Variant.base("other")]
    files_by_variant = dict.fromkeys(bases, VariantFiles(None, None, None))

    def score(model: Any, name: str, together: Any) -> Any:
        asked.append(name)
        if len(asked) == 2:
            raise Killed
        row = {
            "task": "t",
            "metric": "nll",
            "value": float(np.float64(0.1) + 0.2),
            "n_samples": 3,
            "n_shot": 0,
        }
        return [row], [
            {"task": "t", "sample": 0, "metric": "nll", "value": torch.tensor(1.5).item()}
        ]

    with pytest.raises(Killed):
        measuring.measure_variants(
            model, files_by_variant, score, measuring.Unfinished(tmp_path / "b.unfinished", "key")
        )
    unfinished = measuring.Unfinished(tmp_path / "b.unfinished", "key")
    rows, samples = measuring.measure_variants(model, files_by_variant, score, unfinished)
    unfinished.remove()
    assert asked == ["the model 'm'", "the model 'other'", "the model 'other'"]
    assert [row["value"] for row in rows] == [0.1 + 0.2] * 2
    assert [(row["model"], row["value"]) for row in samples] == [("m", 1.5), ("other", 1.5)]
    assert not list(tmp_path.glob("*.unfinished*"))

"""Killed sweeps and benchmarks go on from what they had, and end with the same numbers."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from lamina.data import calibrations
from lamina.data.benchmark_documents import tabulate_documents
from lamina.engine import sweep
from lamina.evaluation import measuring
from lamina.evaluation.assembly import Parts
from lamina.models.structure import layers_of
from lamina.store import parquet, unfinished
from lamina.store.unfinished import Progress
from lamina.variant import Variant
from lamina_workflow.stages.benchmark import BenchmarkPerplexity
from lamina_workflow.stages.job import Job
from lamina_workflow.stages.sweep import SweepUnits
from tests import ROOT
from tests.given import scripts, tiny
from tests.given.model_folders import manifest_of, save_model
from tests.healing.examples import make_samples

UNITS = ["0", "2", "4"]


class Killed(KeyboardInterrupt):
    pass


@pytest.fixture(autouse=True)
def keep_progress_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "SECONDS", 0.0)


def count_passes(model: PreTrainedModel) -> list[int]:
    """A list that grows by the tokens that go through the first layer."""
    n_tokens: list[int] = []

    def count(module: Any, inputs: Any, output: Any) -> None:
        n_tokens.append(inputs[0].shape[1])

    layers_of(model)[0].register_forward_hook(count)
    return n_tokens


def kill_at(n_calls: int, function: Callable[..., Any]) -> Callable[..., None]:
    """The function, which ends the job after its call number `n_calls`."""
    calls: list[tuple[Any, ...]] = []

    def call_and_kill(*args: Any) -> None:
        function(*args)
        calls.append(args)
        if len(calls) == n_calls:
            raise Killed

    return call_and_kill


@pytest.mark.parametrize("n_batches", [1, 4])
def test_a_killed_sweep_runs_only_the_batches_that_are_left(
    n_batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model()
    samples = make_samples(30)
    expected_rows = sweep.sweep_units(model, samples, UNITS, token_budget=100).rows(UNITS)
    passes = count_passes(model)
    sweep.sweep_units(model, samples, UNITS, token_budget=100)
    n_passes = len(passes)

    progress = Progress(tmp_path / "unfinished", "key")
    with monkeypatch.context() as patched:
        patched.setattr(Progress, "save", kill_at(n_batches, Progress.save))
        with pytest.raises(Killed):
            sweep.sweep_units(model, samples, UNITS, token_budget=100, progress=progress)
    passes.clear()
    resumed = sweep.sweep_units(model, samples, UNITS, token_budget=100, progress=progress)

    assert resumed.rows(UNITS) == expected_rows
    assert len(passes) == n_passes - n_batches


def test_progress_of_another_job_is_no_beginning_of_this_one(tmp_path: Path) -> None:
    model = tiny.model()
    samples = make_samples(30)
    progress = Progress(tmp_path / "unfinished", "key")
    finished = sweep.sweep_units(model, samples, UNITS, token_budget=100, progress=progress)
    passes = count_passes(model)

    other_progress = Progress(progress.file, "other")
    repeated = sweep.sweep_units(model, samples, UNITS, token_budget=100, progress=other_progress)

    assert repeated.rows(UNITS) == finished.rows(UNITS)
    assert len(passes) > 1


@pytest.mark.parametrize("n_passes", [1, 2, 5, 8])
def test_a_sweep_broken_off_within_a_batch_counts_nothing_twice(
    n_passes: int, tmp_path: Path
) -> None:
    """With room for few streams a batch takes several passes.

    Choices that share no line stand in several batches, and distances of outputs are sums over
    these.
    """
    model = tiny.model("bloom")
    samples = make_samples(12)
    expected_rows = sweep.sweep_units(model, samples, UNITS, token_budget=30).rows(UNITS)

    progress = Progress(tmp_path / "unfinished", "key")
    kill = kill_at(n_passes, lambda *_: None)
    handle = layers_of(model)[0].register_forward_hook(kill)
    with pytest.raises(Killed):
        sweep.sweep_units(model, samples, UNITS, token_budget=30, progress=progress)
    handle.remove()
    resumed = sweep.sweep_units(model, samples, UNITS, token_budget=30, progress=progress)

    assert resumed.rows(UNITS) == expected_rows


def write_inputs(folder: Path, n_samples: int) -> str:
    """Write a model of eight layers and a calibration; returns the path of the manifest."""
    save_model(folder / "model", depth=8)
    manifest = manifest_of(folder / "model", n_layers=8)
    parquet.write_text(folder / "manifest.json", json.dumps(manifest))
    calibration = calibrations.build_calibration(
        make_samples(n_samples), tiny.VOCABULARY, source="own", split="train", seed=0
    )
    calibrations.write_calibration(folder / "own.parquet", calibration)
    return str(folder / "manifest.json")


# A job of a test would end before it is killed, so it waits once it has kept something.
WAITING_JOB = """
import runpy, sys, time
from lamina.store import unfinished

save = unfinished.Progress.save

def save_and_wait(*args):
    save(*args)
    time.sleep(600)

unfinished.Progress.save = save_and_wait
unfinished.SECONDS = 0.0
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def run_and_kill(job: Job, progress_file: Path, folder: Path) -> None:
    """Run a job in a process of its own, and kill that as soon as it has kept something."""
    (folder / "waiting_job.py").write_text(WAITING_JOB)
    python, _, *arguments = scripts.script_command(job)
    process = subprocess.Popen(
        [python, str(folder / "waiting_job.py"), *arguments], env=scripts.ENVIRONMENT, cwd=ROOT
    )
    while not progress_file.is_file() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert progress_file.is_file()


@pytest.mark.slow
def test_a_killed_sweep_job_leaves_the_same_table(tmp_path: Path) -> None:
    manifest = write_inputs(tmp_path, 60)

    def sweep_job(name: str) -> SweepUnits:
        return SweepUnits(
            manifest=manifest,
            calibration=str(tmp_path / "own.parquet"),
            pass_="removal",
            units="layer",
            block=0,
            blocks=1,
            tokens=100,
            keys={"model": "m", "calibration": "own", "selector": "base", "removed": 0},
            output=str(tmp_path / f"{name}.parquet"),
        )

    progress_file = tmp_path / "killed.parquet.unfinished"
    run_and_kill(sweep_job("killed"), progress_file, tmp_path)
    assert not (tmp_path / "killed.parquet").exists()

    scripts.run_in_process(sweep_job("killed"))
    scripts.run_in_process(sweep_job("whole"))

    assert not progress_file.exists()
    whole_table = parquet.read_table(tmp_path / "whole.parquet")
    assert parquet.read_table(tmp_path / "killed.parquet").equals(whole_table)


@pytest.mark.slow
def test_a_killed_benchmark_job_leaves_the_same_tables(tmp_path: Path) -> None:
    manifest = write_inputs(tmp_path, 4)
    texts = [" ".join(tiny.WORDS[:length]) for length in (30, 5, 17, 8, 24)]
    documents = tabulate_documents([(text, []) for text in texts * 40], with_text=True)
    parquet.write_table(tmp_path / "texts.parquet", documents)

    def benchmark_job(name: str) -> BenchmarkPerplexity:
        options: Any = {"text": "texts.jsonl", "window": 64}
        return BenchmarkPerplexity(
            manifest=manifest,
            variants=[str(Variant.base("m"))],
            name="t",
            text=options,
            documents=str(tmp_path / "texts.parquet"),
            output=str(tmp_path / f"{name}.parquet"),
            samples=str(tmp_path / f"{name}_samples.parquet"),
        )

    run_and_kill(benchmark_job("killed"), tmp_path / "killed.parquet.unfinished.0", tmp_path)
    scripts.run_in_process(benchmark_job("killed"))
    scripts.run_in_process(benchmark_job("whole"))

    for suffix in ("", "_samples"):
        whole_table = parquet.read_table(tmp_path / f"whole{suffix}.parquet")
        assert parquet.read_table(tmp_path / f"killed{suffix}.parquet").equals(whole_table)
    assert not list(tmp_path.glob("*.unfinished*"))


def test_variants_that_were_scored_are_not_scored_again(tmp_path: Path) -> None:
    variants = [Variant.base("m"), Variant.base("other")]
    nothing = Parts(plan=None, patches=None, adapter=None)
    scored_names: list[str] = []

    def score(model: Any, name: str, together: Any) -> Any:
        scored_names.append(name)
        if len(scored_names) == 2:
            raise Killed
        row = {"task": "t", "metric": "nll", "value": 0.1 + 0.2, "n_samples": 3, "n_shot": 0}
        sample = {"task": "t", "sample": 0, "metric": "nll", "value": 1.5}
        return [row], [sample]

    def measure() -> Any:
        progress = measuring.Unfinished(tmp_path / "b.unfinished", "key")
        with_parts = [(variant, nothing) for variant in variants]
        results = measuring.measure_variants(tiny.model(), with_parts, score, progress)
        progress.remove()
        return results

    with pytest.raises(Killed):
        measure()
    rows, samples = measure()

    assert scored_names == ["the model 'm'", "the model 'other'", "the model 'other'"]
    assert [(row["model"], row["value"]) for row in rows] == [
        ("m", 0.1 + 0.2),
        ("other", 0.1 + 0.2),
    ]
    assert [(row["model"], row["value"]) for row in samples] == [("m", 1.5), ("other", 1.5)]
    assert not list(tmp_path.glob("*.unfinished*"))


def test_a_pass_goes_on_although_an_earlier_one_is_not_run_again(tmp_path: Path) -> None:
    """The variants of the first pass were scored before the kill, so only the second is asked for.

    Both files are removed in the end, and no others, whatever characters their names have.
    """
    killed = measuring.Unfinished(tmp_path / "b[1].unfinished", "key")
    killed.of_pass("first group of rows").save({}, {"n_done": 3})
    killed.of_pass("other group of rows").save({}, {"n_done": 5})
    (tmp_path / "b1.unfinished.other").touch()

    continued = measuring.Unfinished(tmp_path / "b[1].unfinished", "key")
    saved = continued.of_pass("other group of rows").load()
    continued.remove()

    assert saved == ({}, {"n_done": 5})
    assert [file.name for file in tmp_path.iterdir()] == ["b1.unfinished.other"]

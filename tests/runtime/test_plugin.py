"""Installed beside another workflow, lamina's logger plugin leaves that workflow alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

# Valid YAML that lamina's own configuration could not be, in a workflow that has nothing to do with lamina.
SNAKEFILE = """
import json

configfile: "settings.yaml"

rule all:
    output: "settings.json"
    run:
        with open(output[0], "w") as file:
            json.dump({str(key): value for key, value in config.items()}, file)
"""
SETTINGS = "on: yes\nmode: 010\na: 1\na: 2\n7: x\n"
EXPECTED = {"True": True, "mode": 8, "a": 2, "7": "x"}


def run_snakemake(
    folder: Path, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def test_a_foreign_workflow_reads_its_yaml_as_if_lamina_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    done = run_snakemake(tmp_path, "--configfile", "settings.yaml")
    assert done.returncode == 0, done.stderr
    assert "lamina" not in (done.stdout + done.stderr).replace(str(ROOT), "")
    assert json.loads((tmp_path / "settings.json").read_text()) == EXPECTED


def test_a_foreign_workflow_may_be_named_from_lamina_s_own_folder(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    files = ["--snakefile", str(tmp_path / "Snakefile"), "--directory", str(tmp_path)]
    settings = ["--configfile", str(tmp_path / "settings.yaml")]
    profile = ["--workflow-profile", "none"]
    done = run_snakemake(ROOT, *files, *settings, *profile)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "settings.json").read_text()) == EXPECTED


def test_a_foreign_workflow_may_use_the_logger(tmp_path: Path) -> None:
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    done = run_snakemake(tmp_path, "--configfile", "settings.yaml", "--logger", "lamina")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 jobs (100 %)" in done.stderr


def test_a_foreign_workflow_fails_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    missing = run_snakemake(tmp_path, "--configfile", "nowhere.yaml")
    assert missing.returncode != 0 and "lamina: " not in missing.stderr
    (tmp_path / "settings.yaml").write_text("a: [\n")
    broken = run_snakemake(tmp_path, "--configfile", "settings.yaml")
    assert broken.returncode != 0 and "lamina: " not in broken.stderr


def test_lamina_s_own_workflow_is_checked_by_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("models: {}\nseed: 1\nseed: 2\n")
    own = ["-s", str(ROOT / "Snakefile"), "--configfile", "mine.yaml"]
    done = run_snakemake(tmp_path, "-n", *own)
    assert done.returncode == 1
    assert "the key 'seed' is given twice, on line 2 and on line 3" in done.stderr
    assert "Traceback" not in done.stderr


def test_lamina_s_own_workflow_takes_numbers_as_yaml_1_2_has_them(tmp_path: Path) -> None:
    """`protect: [014]` means layer 14; by YAML 1.1, as Snakemake reads it, it would be 12."""
    (tmp_path / "mine.yaml").write_text(
        f"models: {{reference: {{source: {ROOT}/resources/reference}}}}\n"
        "calibrations: {facts: {task: microworld_facts, limit: 0_12}}\n"
        "selectors: {cosine: {metric: cosine, protect: [014]}}\n"
        "studies: {on: {models: reference, calibrations: facts, selectors: cosine, removed: 1}}\n"
    )
    own = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "mine.yaml"]
    done = run_snakemake(tmp_path, "-n", *own)
    assert "line 3: selectors.cosine.protect: 14 is not a layer of 'reference'" in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB, for what needs one of its own; only root may make it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(
            "no disk can be mounted here: the checks of full and read-only disks are left out"
        )
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


CONFIG = """
models: {reference: {source: resources/reference}}
calibrations: {facts: {task: microworld_facts, limit: 40}}
studies: {maps: {models: reference, calibrations: facts, metrics: cosine}}
"""


def test_a_read_only_disk_is_noticed_before_anything_is_imported(
    small_disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    (tmp_path / "results").symlink_to(small_disk)
    own = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "mine.yaml"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = run_snakemake(tmp_path, *own)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{tmp_path}/results cannot be written to (Read-only file system)" in done.stderr
    assert run_snakemake(tmp_path, "-n", *own).returncode == 0


def test_a_full_disk_is_noticed_before_any_job(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    (tmp_path / "results").symlink_to(small_disk)
    (small_disk / "filler").write_bytes(b"\0" * (6 << 20))
    own = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "mine.yaml"]
    done = run_snakemake(tmp_path, *own)
    assert done.returncode == 1
    assert f"{tmp_path}/results is on a disk that is full" in done.stderr
    assert not list((tmp_path / "logs").rglob("*.log"))
    assert run_snakemake(tmp_path, "-n", *own).returncode == 0


def test_a_link_to_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    (tmp_path / "results").symlink_to(tmp_path / "unmounted")
    own = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "mine.yaml"]
    done = run_snakemake(tmp_path, *own)
    assert done.returncode == 1 and "results is a link to" in done.stderr

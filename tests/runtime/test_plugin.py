"""Installed beside another workflow, lamina's logger plugin leaves that workflow alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

# A workflow that has nothing to do with lamina, with valid YAML that lamina would refuse.
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


def run_snakemake(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def read_result(folder: Path) -> dict[str, Any]:
    """What the foreign workflow read from its settings."""
    result: dict[str, Any] = json.loads((folder / "settings.json").read_text())
    return result


def test_a_foreign_workflow_reads_its_yaml_as_without_lamina(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    run = run_snakemake(tmp_path, "--configfile", "settings.yaml")
    assert run.returncode == 0, run.stderr
    output = (run.stdout + run.stderr).replace(str(ROOT), "")
    assert "lamina" not in output
    assert read_result(tmp_path) == EXPECTED


@pytest.mark.slow
def test_a_foreign_workflow_may_be_run_from_laminas_own_folder(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    files = ["--snakefile", str(tmp_path / "Snakefile"), "--directory", str(tmp_path)]
    settings = ["--configfile", str(tmp_path / "settings.yaml")]
    run = run_snakemake(ROOT, *files, *settings, "--workflow-profile", "none")
    assert run.returncode == 0, run.stderr
    assert read_result(tmp_path) == EXPECTED


@pytest.mark.slow
def test_a_foreign_workflow_may_use_the_logger(tmp_path: Path) -> None:
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    run = run_snakemake(tmp_path, "--configfile", "settings.yaml", "--logger", "lamina")
    assert run.returncode == 0, run.stderr
    assert "1 of 1 jobs" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("settings", [None, "a: [\n"], ids=["missing", "no YAML"])
def test_a_foreign_workflow_fails_with_its_own_messages(
    tmp_path: Path, settings: str | None
) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    if settings is not None:
        (tmp_path / "settings.yaml").write_text(settings)
    run = run_snakemake(tmp_path, "--configfile", "settings.yaml")
    assert run.returncode != 0
    assert "lamina: " not in run.stderr


OWN_WORKFLOW = ["--snakefile", str(ROOT / "workflow/Snakefile"), "--configfile", "mine.yaml"]


def test_laminas_own_configuration_is_checked_by_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("models: {}\nseed: 1\nseed: 2\n")
    run = run_snakemake(tmp_path, "-n", *OWN_WORKFLOW)
    assert run.returncode == 1
    assert "the key 'seed' is given twice, on line 2 and on line 3" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_laminas_own_configuration_has_numbers_of_yaml_1_2(tmp_path: Path) -> None:
    """`protect: [014]` means layer 14; by YAML 1.1, as Snakemake reads it, it would be 12."""
    (tmp_path / "mine.yaml").write_text(
        f"models: {{reference: {{source: {ROOT}/resources/reference}}}}\n"
        "calibrations: {facts: {task: microworld_facts, limit: 0_12}}\n"
        "selectors: {cosine: {metric: cosine, protect: [014]}}\n"
        "studies: {on: {models: reference, calibrations: facts, selectors: cosine, removed: 1}}\n"
    )
    run = run_snakemake(tmp_path, "-n", *OWN_WORKFLOW)
    assert "line 3: selectors.cosine.protect: 14 is not a layer of 'reference'" in run.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB; only root can make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted: full and read-only disks are NOT tested")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


CONFIG = """
models: {reference: {source: resources/reference}}
calibrations: {facts: {task: microworld_facts, limit: 40}}
studies: {maps: {models: reference, calibrations: facts, metrics: cosine}}
"""


def write_study(folder: Path, results: Path) -> None:
    """A study in a folder whose results are elsewhere."""
    (folder / "mine.yaml").write_text(CONFIG)
    (folder / "resources").symlink_to(ROOT / "resources")
    (folder / "results").symlink_to(results)


@pytest.mark.slow
def test_a_read_only_disk_is_reported_before_any_job(small_disk: Path, tmp_path: Path) -> None:
    """A dry run needs no disk."""
    write_study(tmp_path, small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    run = run_snakemake(tmp_path, *OWN_WORKFLOW)

    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert f"{tmp_path}/results cannot be written to (Read-only file system)" in run.stderr
    assert run_snakemake(tmp_path, "-n", *OWN_WORKFLOW).returncode == 0


def test_a_full_disk_is_reported_before_any_job(small_disk: Path, tmp_path: Path) -> None:
    write_study(tmp_path, small_disk)
    (small_disk / "filler").write_bytes(b"\0" * (6 << 20))

    run = run_snakemake(tmp_path, *OWN_WORKFLOW)

    assert run.returncode == 1
    assert f"{tmp_path}/results is on a disk that is full" in run.stderr
    assert not list((tmp_path / "logs").rglob("*.log"))


def test_a_link_to_a_missing_folder_is_refused(tmp_path: Path) -> None:
    write_study(tmp_path, tmp_path / "unmounted")
    run = run_snakemake(tmp_path, *OWN_WORKFLOW)
    assert run.returncode == 1
    assert "results is a link to" in run.stderr

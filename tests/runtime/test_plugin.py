"""Installed beside another workflow, lamina's logger plugin leaves that workflow alone."""

import json
import os
import subprocess
import sys
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
FOREIGN = {
    "a key that reads as true": ("on: yes\n", {"True": True}),
    "an octal number": ("mode: 010\n", {"mode": 8}),
    "a key twice": ("a: 1\na: 2\n", {"a": 2}),
    "a key that is a number": ("1: x\n", {"1": "x"}),
}


def run_snakemake(
    folder: Path, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_workflow_reads_its_yaml_as_if_lamina_were_not_there(
    name: str, tmp_path: Path
) -> None:
    settings, expected = FOREIGN[name]
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text(settings)
    done = run_snakemake(tmp_path, "--configfile", "settings.yaml")
    assert done.returncode == 0, done.stderr
    assert "lamina" not in done.stdout + done.stderr.replace(str(ROOT), "")
    assert json.loads((tmp_path / "settings.json").read_text()) == expected


def test_a_foreign_workflow_may_be_named_from_lamina_s_own_folder(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text("on: yes\n")
    files = ["--snakefile", str(tmp_path / "Snakefile"), "--directory", str(tmp_path)]
    settings = ["--configfile", str(tmp_path / "settings.yaml")]
    profile = ["--workflow-profile", "none"]
    done = run_snakemake(ROOT, *files, *settings, *profile)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "settings.json").read_text()) == {"True": True}


def test_a_foreign_workflow_may_use_the_logger(tmp_path: Path) -> None:
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(SNAKEFILE)
    (tmp_path / "settings.yaml").write_text("on: yes\n")
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


def test_a_foreign_workflow_needs_no_cache_of_lamina_s(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(
        'rule all:\n    output: "out"\n    shell: "touch {output}"\n'
    )
    (tmp_path / "file").touch()
    done = run_snakemake(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file/cache"))
    assert "Set XDG_CACHE_HOME" not in done.stderr


@pytest.mark.parametrize("snakefile", [[], ["-s", "Snakefile"], [f"--snakefile={ROOT}/Snakefile"]])
def test_lamina_s_own_workflow_is_checked_by_line(snakefile: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("models: {}\nseed: 1\nseed: 2\n")
    done = run_snakemake(ROOT, "-n", *snakefile, "--configfile", str(tmp_path / "mine.yaml"))
    assert done.returncode == 1
    assert "the key 'seed' stands twice, in line 2 and in line 3" in done.stderr
    assert "Traceback" not in done.stderr


def test_lamina_s_own_workflow_takes_numbers_as_yaml_1_2_has_them(tmp_path: Path) -> None:
    """`protect: [014]` means layer 14; by YAML 1.1, as Snakemake reads it, it would be 12."""
    (tmp_path / "mine.yaml").write_text(
        "models: {reference: {source: resources/reference}}\n"
        "calibrations: {facts: {task: microworld_facts, limit: 0_12}}\n"
        "selectors: {cosine: {metric: cosine, protect: [014]}}\n"
        "studies: {on: {models: reference, calibrations: facts, selectors: cosine, removed: 1}}\n"
    )
    done = run_snakemake(ROOT, "-n", "--configfile", str(tmp_path / "mine.yaml"))
    assert "line 3: selectors.cosine.protect: 14 is no layer of 'reference'" in done.stderr

"""The workflow catalog's crawler finds lamina, and its file runs what the project's own one runs."""

import subprocess
import sys
from os import environ
from pathlib import Path

import pytest
import yaml

from tests import ROOT


def count_jobs(snakefile: str, folder: Path) -> dict[str, str]:
    """The numbers of jobs by rule, of a dry run of the smallest study."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / snakefile)]
    command += ["--configfile", str(ROOT / "tests/configs/tiny.yaml"), "--cores", "1"]
    command += ["--dry-run", "--quiet", "rules", "--directory", str(folder)]
    environment = environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    fields = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: line[1] for line in fields if len(line) == 2 and line[1].isdigit()}


def test_the_files_that_the_crawler_reads_exist() -> None:
    assert (ROOT / "workflow/Snakefile").is_file()
    assert (ROOT / "config/README.md").is_file()
    settings = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())
    assert {"mandatory-flags", "software-stack-deployment", "report"} <= settings["usage"].keys()


@pytest.mark.slow
def test_the_file_in_workflow_plans_the_same_jobs(tmp_path: Path) -> None:
    for part in ("resources", "workflow"):
        (tmp_path / part).symlink_to(ROOT / part)

    expected = count_jobs("Snakefile", tmp_path)
    catalogued = count_jobs("workflow/Snakefile", tmp_path)

    assert expected.pop("all") == catalogued.pop("default") == "1"
    assert catalogued == expected


def test_snakemake_has_nothing_to_object_to(tmp_path: Path) -> None:
    for part in ("resources", "workflow"):
        (tmp_path / part).symlink_to(ROOT / part)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--lint"]
    command += ["--configfile", str(ROOT / "tests/configs/tiny.yaml")]
    command += ["--directory", str(tmp_path)]
    environment = environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr

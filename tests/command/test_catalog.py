"""The workflow catalog's crawler takes lamina, and its checks find nothing to object to.

The crawler clones a repository whose README speaks of Snakemake and workflows, looks for
`workflow/Snakefile`, the settings and the instructions in `config/README.md`, and runs
`snakemake --lint` and `snakefmt --check`.
"""

import re
import subprocess
import sys
from os import environ
from pathlib import Path

import pytest
import yaml

from tests import ROOT

SNAKEMAKE = [sys.executable, "-m", "snakemake"]
ENVIRONMENT = environ | {"PYTHONPATH": str(ROOT / "src")}


def test_a_search_for_workflows_finds_the_readme() -> None:
    readme = (ROOT / "README.md").read_text().lower()

    assert "snakemake" in readme
    assert "workflow" in readme


def test_the_files_of_a_workflow_of_standardised_usage_exist() -> None:
    assert (ROOT / "workflow/Snakefile").is_file()
    assert not (ROOT / "workflow/rules").exists()  # it would have to hold the rules
    assert (ROOT / "config/README.md").read_text()
    settings = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())
    assert settings["usage"].keys() <= {"mandatory-flags", "software-stack-deployment", "report"}
    assert settings["usage"]["report"] is True


def test_the_mandatory_flags_are_flags_of_snakemake(tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())
    flags = settings["usage"]["mandatory-flags"]["flags"].split()

    for part in ("config", "resources", "workflow"):
        (tmp_path / part).symlink_to(ROOT / part)
    command = [*SNAKEMAKE, "--snakefile", str(ROOT / "workflow/Snakefile"), "--cores", "1"]
    command += ["--directory", str(tmp_path), "--lint", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr


def test_the_snakefile_is_formatted() -> None:
    snakefmt = Path(sys.executable).with_name("snakefmt")
    command = [str(snakefmt), "--check", "workflow/Snakefile"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def test_the_changelog_begins_with_the_version_of_the_first_release() -> None:
    from lamina.version import VERSION

    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == VERSION


def count_jobs(snakefile: str, folder: Path) -> dict[str, str]:
    """The numbers of jobs by rule, of a dry run of the smallest study."""
    command = [*SNAKEMAKE, "--snakefile", str(ROOT / snakefile), "--cores", "1"]
    command += ["--configfile", str(ROOT / "tests/configs/tiny.yaml")]
    command += ["--dry-run", "--quiet", "rules", "--directory", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    fields = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: line[1] for line in fields if len(line) == 2 and line[1].isdigit()}


@pytest.mark.slow
def test_the_file_at_the_top_plans_the_same_jobs(tmp_path: Path) -> None:
    for part in ("resources", "workflow"):
        (tmp_path / part).symlink_to(ROOT / part)

    at_the_top = count_jobs("Snakefile", tmp_path)
    catalogued = count_jobs("workflow/Snakefile", tmp_path)

    assert at_the_top.pop("default") == catalogued.pop("all") == "1"
    assert at_the_top == catalogued

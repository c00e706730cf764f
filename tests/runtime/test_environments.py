"""However lamina is installed, the versions are those of requirements.lock."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.pipeline.project import copy_project, rules_of


def test_the_conda_environment_pins_what_the_lock_pins() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = [line for line in lines if line and not line.startswith("#")]
    environment = yaml.safe_load((ROOT / "envs/lamina.yaml").read_text())
    (pip_section,) = [entry for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert sorted(pip_section["pip"]) == sorted(locked)


def write_executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def write_python_command(folder: str, log: Path) -> str:
    """A shell command that writes a `python` into a folder; it logs the scripts that it runs."""
    wrapper = f'#!/bin/sh\necho "$1" >> "{log}"\nexec "{sys.executable}" "$@"\n'
    return (
        f"mkdir -p {folder}; cat > {folder}/python <<'END'\n{wrapper}END\nchmod +x {folder}/python"
    )


def conda_script(folder: Path, log: Path) -> str:
    """What Snakemake needs of conda."""
    write_python = write_python_command('"$2"/bin', log)
    return f"""
case "$1 $2" in
"info --json") echo '{{"conda_prefix": "{folder}/conda", "platform": "linux-64"}}' ;;
"--version "*) echo "conda 25.1.0" ;;
"config --get") echo '{{"get": {{"channel_priority": "strict"}}}}' ;;
"env create") while [ "$1" != --prefix ]; do shift; done; {write_python} ;;
esac"""


def apptainer_script(folder: Path, log: Path) -> str:
    """What Snakemake needs of apptainer."""
    write_python = write_python_command(f"{folder}/container", log)
    return f"""
if [ "$1" = --version ]; then echo "apptainer version 1.4.0"; exit; fi
echo "$@" > {folder}/image
while [ "$1" != bash ]; do shift; done
{write_python}
export PATH="{folder}/container:$PATH"
exec "$@"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a conda and an apptainer around the packages of this interpreter.

    Their environments have a python of their own, which logs the scripts that it runs into the file
    `log`. The interpreter of these tests is first on PATH, as it is in an activated environment.
    """
    log = tmp_path / "log"
    write_executable(tmp_path / "bin/conda", conda_script(tmp_path, log))
    write_executable(tmp_path / "conda/bin/activate", 'export PATH="$1/bin:$PATH"')
    write_executable(tmp_path / "bin/apptainer", apptainer_script(tmp_path, log))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path


def scripts_run_in_environment(tools: Path, *arguments: str) -> list[str]:
    """The scripts that the python of an environment runs when a table is gathered.

    The folder of the study has a blank in its name.
    """
    folder = tools / "a clone"
    folder.mkdir()
    project = copy_project(folder, "tests/configs/relevance.yaml")
    project.run("results/tables/diagnoses.parquet", *arguments)
    assert (folder / "results/tables/diagnoses.parquet").is_file()
    log = tools / "log"
    if not log.exists():
        return []
    # Snakemake runs a copy of a script, with a prefix before the script's name.
    copies = [Path(line).name for line in log.read_text().splitlines() if line.endswith(".py")]
    return [name.partition(".")[2] for name in copies]


@pytest.mark.slow
def test_scripts_run_on_the_interpreter_of_snakemake(tools: Path) -> None:
    assert scripts_run_in_environment(tools) == []


def test_conda_environments_are_used_where_snakemake_makes_them(tools: Path) -> None:
    assert scripts_run_in_environment(tools, "--sdm", "conda") == ["gather_table.py"]


@pytest.mark.slow
def test_the_container_is_used_where_snakemake_starts_it(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tools / "lamina.sif"
    image.touch()
    monkeypatch.setenv("LAMINA_CONTAINER", str(image))
    assert scripts_run_in_environment(tools, "--sdm", "apptainer") == ["gather_table.py"]
    assert str(image) in (tools / "image").read_text()


@pytest.mark.slow
def test_a_clone_in_a_folder_with_blanks_can_plan_a_whole_study(tmp_path: Path) -> None:
    folder = tmp_path / "a clone, it's mine"
    folder.mkdir()
    project = copy_project(folder, "tests/configs/tiny.yaml")
    assert "render_report" in rules_of(project.stale())


def test_every_rule_that_makes_a_file_names_its_environment() -> None:
    for file in (ROOT / "rules").glob("*.smk"):
        parts = re.split(r"^rule (\w+):$", file.read_text(), flags=re.MULTILINE)
        names = parts[1::2]
        bodies = parts[2::2]
        for name, body in zip(names, bodies, strict=True):
            if "output:" in body:
                assert "conda:\n        ENVIRONMENT" in body, name

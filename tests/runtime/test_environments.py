"""However lamina is installed, the versions are those of requirements.lock."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.pipeline.project import copy_project


def locked() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return sorted(line for line in lines if line and not line.startswith("#"))


def test_the_conda_environment_pins_what_the_lock_pins() -> None:
    environment = yaml.safe_load((ROOT / "envs/lamina.yaml").read_text())
    pinned = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert sorted(pinned) == locked()


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def logging_python(folder: Path, log: Path) -> str:
    """A shell command that puts a `python` into `folder` which writes down what it is asked to run."""
    wrapper = f'#!/bin/sh\necho "$1" >> "{log}"\nexec "{sys.executable}" "$@"\n'
    return (
        f"mkdir -p {folder}; cat > {folder}/python <<'END'\n{wrapper}END\nchmod +x {folder}/python"
    )


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conda and an apptainer that do what Snakemake asks of them, around the packages of this interpreter.

    Both environments have a python of their own, which writes the scripts that it runs into the file `called`. The
    interpreter of these tests comes first on PATH, as it does in an activated environment.
    """
    conda = f"""
case "$1 $2" in
"info --json") echo '{{"conda_prefix": "{tmp_path}/conda", "platform": "linux-64"}}' ;;
"--version "*) echo "conda 25.1.0" ;;
"config --get") echo '{{"get": {{"channel_priority": "strict"}}}}' ;;
"env create") while [ "$1" != --prefix ]; do shift; done; {logging_python(Path('"$2"/bin'), tmp_path / "called")} ;;
esac"""
    executable(tmp_path / "bin/conda", conda)
    executable(tmp_path / "conda/bin/activate", 'export PATH="$1/bin:$PATH"')
    apptainer = f"""
if [ "$1" = --version ]; then echo "apptainer version 1.4.0"; exit; fi
echo "$@" > {tmp_path}/image
while [ "$1" != bash ]; do shift; done
{logging_python(tmp_path / "container", tmp_path / "called")}
export PATH="{tmp_path}/container:$PATH"
exec "$@"
"""
    executable(tmp_path / "bin/apptainer", apptainer)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path


def prepared(tools: Path, *arguments: str) -> list[str]:
    """The scripts that the python of an environment ran, when a table was gathered in a folder with a blank."""
    folder = tools / "a clone"
    folder.mkdir()
    project = copy_project(folder, "tests/configs/relevance.yaml")
    project.run("results/tables/diagnoses.parquet", *arguments)
    assert (folder / "results/tables/diagnoses.parquet").is_file()
    called = tools / "called"
    # Snakemake runs a copy of a script, under a name of its own before the script's.
    scripts = (
        [line for line in called.read_text().splitlines() if line.endswith(".py")]
        if called.exists()
        else []
    )
    return [Path(line).name.partition(".")[2] for line in scripts]


def test_commands_run_on_the_interpreter_of_snakemake(tools: Path) -> None:
    assert prepared(tools) == []


def test_a_clone_in_a_folder_with_blanks_can_plan_a_whole_study(tmp_path: Path) -> None:
    folder = tmp_path / "a clone, it's mine"
    folder.mkdir()
    assert "render_report" in {
        job.rule for job in copy_project(folder, "tests/configs/tiny.yaml").stale()
    }


def test_conda_environments_are_used_where_snakemake_makes_them(tools: Path) -> None:
    assert prepared(tools, "--sdm", "conda") == ["gather_table.py"]


def test_the_container_is_used_where_snakemake_starts_it(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tools / "lamina.sif").touch()
    monkeypatch.setenv("LAMINA_CONTAINER", str(tools / "lamina.sif"))
    assert prepared(tools, "--sdm", "apptainer") == ["gather_table.py"]
    assert f"{tools}/lamina.sif" in (tools / "image").read_text()


def test_every_rule_that_runs_python_names_its_environment() -> None:
    for file in (ROOT / "rules").glob("*.smk"):
        rules = re.split(r"^rule (\w+):$", file.read_text(), flags=re.MULTILINE)[1:]
        for name, body in zip(rules[::2], rules[1::2], strict=True):
            # What makes nothing is a name for a part of a run.
            assert "conda:\n        ENVIRONMENT" in body or "output:" not in body, name

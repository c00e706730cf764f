"""A copy of the project in a folder of its own, and Snakemake run in it as a user would."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import yaml

from tests import ROOT

COPIED = (
    "Snakefile",
    "rules",
    "profiles",
    "workflow",
    "src",
    "sql",
    "config",
    "envs",
    "resources",
    "requirements.lock",
    "tests/configs",
)


@dataclass(frozen=True)
class Job:
    """One job of a dry run."""

    rule: str
    wildcards: dict[str, str]


@dataclass(frozen=True)
class Project:
    """`folder` holds the copy, `config` is the configuration file that every command uses."""

    folder: Path
    config: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Snakemake; its output is standard output and error together."""
        process = self.start(*arguments)
        output, _ = process.communicate()
        if check and process.returncode:
            command = f"snakemake {' '.join(arguments)}"
            raise AssertionError(f"{command} ended {process.returncode}:\n{output[-6000:]}")
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start Snakemake and do not wait for it."""
        command = [sys.executable, "-m", "snakemake"]
        command += ["--configfile", str(self.config), "--cores", "2", *arguments]
        # A run sees nothing of the GPU or the hub around the tests.
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "PYTHONPATH": str(self.folder / "src"),  # also for the logger plugin
        }
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def stale(self, config: Path | None = None) -> list[Job]:
        """The jobs that a dry run would start, optionally under another configuration."""
        project = self if config is None else Project(self.folder, config)
        planned_jobs = parse_jobs(project.run("-n").stdout)
        only_targets = rules_of(planned_jobs) == {"default"}
        return [] if only_targets else planned_jobs

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query over the tables of the run, by their names."""
        with duckdb.connect() as connection:
            for file in (self.folder / "results/tables").glob("*.parquet"):
                connection.execute(f"CREATE VIEW {file.stem} AS FROM '{file}'")
            return connection.execute(sql).fetchall()

    def edit(self, file: str, old_text: str, new_text: str) -> None:
        """Replace text in a file of the copy."""
        path = self.folder / file
        content = path.read_text()
        assert old_text in content, f"{file} does not contain {old_text!r}"
        path.write_text(content.replace(old_text, new_text))

    def append(self, file: str, text: str) -> None:
        """Write text at the end of a file of the copy."""
        path = self.folder / file
        assert path.is_file(), f"{file} is no file"
        with path.open("a") as stream:
            stream.write(text)

    def configure(self, changes: dict[str, Any]) -> None:
        """Replace nested values in the configuration."""
        config = yaml.safe_load(self.config.read_text())
        _merge(config, changes)
        self.config.write_text(yaml.safe_dump(config, sort_keys=False))

    @contextmanager
    def restored(self) -> Iterator["Project"]:
        """Undo afterwards what was written into the code and the configurations."""
        content_before = {path: path.read_bytes() for path in self._sources()}
        try:
            yield self
        finally:
            for path in self._sources():
                if path not in content_before:
                    path.unlink()
                elif path.read_bytes() != content_before[path]:
                    path.write_bytes(content_before[path])

    def _sources(self) -> list[Path]:
        """All files of the copy but models and data."""
        paths: list[Path] = []
        for name in COPIED:
            copied = self.folder / name
            if copied.is_file():
                paths.append(copied)
            elif name != "resources":
                paths += copied.rglob("*")
        return [path for path in paths if path.is_file() and "__pycache__" not in path.parts]


def _merge(config: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            _merge(config[key], value)
        else:
            config[key] = value


def parse_jobs(output: str) -> list[Job]:
    """The jobs that a dry run's output lists: a line `rule NAME:` and its indented attributes."""
    wildcards_label = "    wildcards: "
    jobs: list[Job] = []
    for line in output.splitlines():
        rule_line = re.fullmatch(r"(?:local)?rule (\w+):", line)
        if rule_line:
            jobs.append(Job(rule_line[1], {}))
        elif jobs and line.startswith(wildcards_label):
            for wildcard in line.removeprefix(wildcards_label).split(", "):
                name, value = wildcard.split("=", 1)
                jobs[-1].wildcards[name] = value
    return jobs


def rules_of(jobs: list[Job]) -> set[str]:
    return {job.rule for job in jobs}


def wildcard_values(jobs: list[Job], rule: str, wildcard: str) -> set[str]:
    """The values of a wildcard in the jobs of a rule."""
    return {job.wildcards[wildcard] for job in jobs if job.rule == rule}


def copy_project(folder: Path, config: str) -> Project:
    """Copy what a run needs into `folder`; `config` is a path in the project."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return Project(folder, folder / config)

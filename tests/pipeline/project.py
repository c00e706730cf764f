"""A copy of the project in a folder of its own, and Snakemake run in it as a person would."""

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

PARTS = "Snakefile rules profiles workflow src sql config envs resources requirements.lock tests/configs".split()


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
        process = self.started(*arguments)
        output, _ = process.communicate()
        if check and process.returncode:
            raise AssertionError(
                f"snakemake {' '.join(arguments)} ended {process.returncode}:\n{output[-6000:]}"
            )
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def started(self, *arguments: str) -> "subprocess.Popen[str]":
        """Snakemake, at work."""
        command = [
            sys.executable,
            "-m",
            "snakemake",
            "--configfile",
            str(self.config),
            "--cores",
            "2",
        ]
        # A cluster's or a GPU's settings around the tests are not theirs.
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
        }
        environment["PYTHONPATH"] = str(
            self.folder / "src"
        )  # Snakemake loads the copy's logger plugin
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*command, *arguments], cwd=self.folder, env=environment, **pipes)  # type: ignore

    def stale(self, config: Path | None = None) -> list[Job]:
        """The jobs that a dry run would start, optionally under another configuration."""
        project = self if config is None else Project(self.folder, config)
        jobs = parse_jobs(project.run("-n").stdout)
        return jobs if {job.rule for job in jobs} != {"all"} else []

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query over the tables of the run, by their names."""
        with duckdb.connect() as connection:
            for file in (self.folder / "results/tables").glob("*.parquet"):
                connection.execute(f"CREATE VIEW {file.stem} AS FROM '{file}'")
            return connection.execute(sql).fetchall()

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace text in a file of the copy."""
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{file} does not hold {old!r}"
        path.write_text(text.replace(old, new))

    def add(self, file: str, text: str) -> None:
        """Write text at the end of a file of the copy, which need not be there."""
        with (self.folder / file).open("a") as end:
            end.write(text)

    def configure(self, change: dict[str, Any]) -> None:
        """Replace nested values in the configuration."""

        def merge(into: dict[str, Any], values: dict[str, Any]) -> None:
            for key, value in values.items():
                if isinstance(value, dict) and isinstance(into.get(key), dict):
                    merge(into[key], value)
                else:
                    into[key] = value

        config = yaml.safe_load(self.config.read_text())
        merge(config, change)
        self.config.write_text(yaml.safe_dump(config, sort_keys=False))

    @contextmanager
    def restored(self) -> Iterator["Project"]:
        """Undo afterwards what was written into the code and the configurations."""
        before = {path: path.read_bytes() for path in self._sources()}
        try:
            yield self
        finally:
            for path in self._sources():
                if path not in before:
                    path.unlink()
                elif path.read_bytes() != before[path]:
                    path.write_bytes(before[path])

    def _sources(self) -> list[Path]:
        parts = [self.folder / part for part in PARTS if part != "resources"]
        files = [
            path
            for part in parts
            for path in ([part] if part.is_file() else part.rglob("*"))
            if path.is_file()
        ]
        return [path for path in files if "__pycache__" not in path.parts]


def parse_jobs(output: str) -> list[Job]:
    """The jobs that a dry run's output lists: a line `rule NAME:` and its indented attributes."""
    jobs: list[Job] = []
    for line in output.splitlines():
        if rule := re.fullmatch(r"(?:local)?rule (\w+):", line):
            jobs.append(Job(rule[1], {}))
        elif jobs and line.startswith("    wildcards: "):
            jobs[-1].wildcards.update(
                pair.split("=", 1) for pair in line.removeprefix("    wildcards: ").split(", ")
            )
    return jobs


def copy_project(folder: Path, config: str) -> Project:
    """Copy what a run needs into `folder`; `config` is a path in the project."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    return Project(folder, folder / config)

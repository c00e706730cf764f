"""The tests' own cluster, and Snakemake driven on it as from a login node."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT
from tests.pipeline.project import copy_project

SCRIPT = Path(__file__).with_name("cluster.sh")
# What differs from a site's run: one thread a job, as in the local runs to compare with, and no patience.
GPU_STAGES = (
    *(
        "check_model",
        "capture_activations",
        "sweep_units",
        "fit_patch",
        "heal_variant",
        "diagnose_layers",
    ),
    *("benchmark_task", "benchmark_perplexity", "benchmark_efficiency"),
)
QUICK = ["--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1"]
HASTE = [*QUICK, "--latency-wait", "10", "--set-threads", *(f"{rule}=1" for rule in GPU_STAGES)]
ENVIRONMENT = os.environ | {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}


@dataclass(frozen=True)
class SlurmJob:
    """One job as squeue tells of it, ended ones included; times in seconds since 1970."""

    id: str
    run: str
    state: str
    partition: str
    what: str
    memory: str
    start: float
    end: float


@dataclass(frozen=True)
class Clone:
    """A copy of the project on the cluster's shared folder; `config` is the configuration of every command."""

    folder: Path
    config: str

    @property
    def _environment(self) -> dict[str, str]:
        return ENVIRONMENT | {"PYTHONPATH": str(self.folder / "src")}

    def driver(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `snakemake --profile slurm`; its output goes to driver.log."""
        command = [
            sys.executable,
            *"-m snakemake --profile slurm".split(),
            *arguments,
            "--configfile",
            self.config,
        ]
        with (self.folder / "driver.log").open("a") as log:
            told = {
                "cwd": self.folder,
                "env": self._environment,
                "stdout": log,
                "stderr": subprocess.STDOUT,
            }
            # In the background, tests inherit that Ctrl-C is ignored; a person's shell does not ignore it.
            told |= {
                "start_new_session": True,
                "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            }
            return subprocess.Popen([*command, *HASTE], text=True, **told)

    def run(self, *arguments: str) -> int:
        """Run `snakemake --profile slurm` to its end; its exit status."""
        return self.driver(*arguments).wait(timeout=900)

    def log(self) -> str:
        """Everything that drivers said, and the logs of jobs."""
        logs = [self.folder / "driver.log", *sorted((self.folder / "logs").rglob("*.log"))]
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')}" for log in logs if log.is_file()
        )

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run make in the folder, on the interpreter of these tests."""
        command, said = (
            ["make", f"CONFIG={self.config}", *arguments],
            {"stdout": subprocess.PIPE, "text": True},
        )
        told = {
            "cwd": self.folder,
            "env": self._environment,
            "stderr": subprocess.STDOUT,
            "timeout": 900,
        }
        return subprocess.run(command, **said, **told, check=False)

    def jobs(self) -> list[SlurmJob]:
        """All jobs that drivers in this folder submitted, in that order."""
        form = "--format=%i|%j|%T|%P|%k|%m|%S|%e|%Z"
        done = subprocess.run(
            ["squeue", "--noheader", "--states=all", form],
            check=True,
            capture_output=True,
            text=True,
        )
        found = []
        for line in done.stdout.splitlines():
            *told, start, end, where = line.split("|")
            if Path(where) == self.folder:
                found.append(SlurmJob(*told, _seconds(start), _seconds(end)))
        return sorted(found, key=lambda job: int(job.id))

    def inject(self, script: str, code: str) -> None:
        """Have `script` run `code` first, with a folder `faults` to remember what it did."""
        path = self.folder / "workflow/scripts" / script
        (self.folder / "faults").mkdir(exist_ok=True)
        entry = 'if __name__ == "__main__":\n'
        text = path.read_text()
        assert entry in text
        path.write_text(text.replace(entry, "import os, signal, time\n" + code + entry))


def _seconds(stamp: str) -> float:
    return (
        time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))
        if stamp.startswith("2")
        else float("nan")
    )


def clone(folder: Path, config: str) -> Clone:
    """A copy of the project in `folder` as `git clone` and `make` leave it."""
    copy_project(folder, config)
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    shutil.copy(ROOT / "Makefile", folder)
    # What make compares with the time of the installation.
    shutil.copystat(ROOT / "requirements.lock", folder / "requirements.lock")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    return Clone(folder, config)

"""The tests' own cluster, and Snakemake driven on it as from a login node."""

import math
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
GPU_STAGES = (
    "check_model",
    "capture_activations",
    "sweep_units",
    "fit_patch",
    "heal_variant",
    "diagnose_layers",
    "benchmark_task",
    "benchmark_perplexity",
    "benchmark_efficiency",
)
# Unlike a site's run, these look for ended jobs every second,
SHORT_WAITS = [
    "--slurm-init-seconds-before-status-checks",
    "1",
    "--seconds-between-status-checks",
    "1",
]
# and a job has one thread, as in the local runs to compare with.
ONE_THREAD = ["--set-threads", *[f"{rule}=1" for rule in GPU_STAGES]]
ENVIRONMENT = os.environ | {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}
SECONDS_OF_A_RUN = 900


@dataclass(frozen=True)
class SlurmJob:
    """One job as squeue lists it, ended ones included; times in seconds since 1970."""

    id: str
    run: str
    state: str
    partition: str
    comment: str  # names the rule and its wildcards
    memory: str
    start: float
    end: float


@dataclass(frozen=True)
class Clone:
    """A copy of the project on the cluster's shared folder.

    `config` is the configuration of every command.
    """

    folder: Path
    config: str

    @property
    def environment(self) -> dict[str, str]:
        return ENVIRONMENT | {"PYTHONPATH": str(self.folder / "src")}

    def start_driver(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `snakemake --profile slurm`; its output goes to driver.log."""
        command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *arguments]
        command += ["--configfile", self.config, "--latency-wait", "10"]
        with (self.folder / "driver.log").open("a") as log:
            return subprocess.Popen(
                [*command, *SHORT_WAITS, *ONE_THREAD],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )

    def run(self, *arguments: str) -> int:
        """Run `snakemake --profile slurm` to its end; its exit status."""
        return self.wait(self.start_driver(*arguments))

    def wait(self, driver: subprocess.Popen[str]) -> int:
        """The exit status of a driver, or what it waits for where it does not end."""
        try:
            return driver.wait(timeout=SECONDS_OF_A_RUN)
        except subprocess.TimeoutExpired:
            queue = subprocess.run(["squeue"], capture_output=True, text=True, check=False)
            raise AssertionError(f"{queue.stdout}\n{self.read_logs()[-8000:]}") from None

    def read_logs(self) -> str:
        """The logs of drivers and of jobs."""
        files = [self.folder / "driver.log", *sorted((self.folder / "logs").rglob("*.log"))]
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')}"
            for file in files
            if file.is_file()
        )

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run make in the folder, on the interpreter of these tests."""
        return subprocess.run(
            ["make", f"CONFIG={self.config}", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_OF_A_RUN,
            check=False,
        )

    def list_jobs(self) -> list[SlurmJob]:
        """All jobs that drivers in this folder submitted, in that order."""
        # Id, name, state, partition, comment, memory, start, end and folder.
        columns = "--format=%i|%j|%T|%P|%k|%m|%S|%e|%Z"
        process = subprocess.run(
            ["squeue", "--noheader", "--states=all", columns],
            check=True,
            capture_output=True,
            text=True,
        )
        jobs = []
        for line in process.stdout.splitlines():
            *fields, start, end, folder = line.split("|")
            if Path(folder) == self.folder:
                jobs.append(SlurmJob(*fields, parse_time(start), parse_time(end)))
        return sorted(jobs, key=lambda job: int(job.id))

    def list_sweeps(self) -> list[SlurmJob]:
        return [job for job in self.list_jobs() if "sweep_units" in job.comment]

    def inject(self, script: str, code: str) -> None:
        """Have `script` run `code` first, with a folder `faults` to remember what it did."""
        file = self.folder / "workflow/scripts" / script
        (self.folder / "faults").mkdir(exist_ok=True)
        entry = 'if __name__ == "__main__":\n'
        text = file.read_text()
        assert entry in text
        file.write_text(text.replace(entry, "import os, signal, time\n" + code + entry))


def heed_interrupts() -> None:
    """End on Ctrl-C as in a person's shell: tests in the background inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def parse_time(stamp: str) -> float:
    """Seconds since 1970, or nan where squeue knows no time."""
    if not stamp.startswith("2"):
        return math.nan
    return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))


def make_clone(folder: Path, config: str) -> Clone:
    """A copy of the project in `folder` as `git clone` and `make` leave it."""
    copy_project(folder, config)
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    shutil.copy(ROOT / "Makefile", folder)
    # What make compares with the time of the installation.
    shutil.copystat(ROOT / "requirements.lock", folder / "requirements.lock")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    return Clone(folder, config)

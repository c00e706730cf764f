"""Make a folder ready to continue after its driver was lost: end the cluster jobs that the driver left behind.

Jobs survive the `snakemake` that submitted them. Were it started again at once, old and new jobs would write the same
files. This cancels the jobs of this folder's runs, known by their name, which is the run's id, and waits until they
have ended. Finished results stay. `make resume-slurm` calls this, unlocks the folder and starts Snakemake again.
"""

import argparse
import getpass
import re
import subprocess
import sys
import time
from pathlib import Path

from lamina.errors import explained
from lamina.runtime import runs

PREFIX = "lamina_"  # slurm-jobname-prefix of slurm/profile.yaml
PATIENCE_S = 300


def run_ids(folder: Path) -> set[str]:
    """Ids of all runs that left a log in `folder`."""
    logs = (folder / ".snakemake/log").glob("*.snakemake.log")
    return {name for log in logs for name in re.findall(r"SLURM run ID: (\S+)", log.read_text(errors="replace"))}


def orphans(folder: Path) -> list[tuple[str, str]]:
    """(job id, what it does) of this user's unfinished jobs that runs in `folder` submitted."""
    known = run_ids(folder)
    command = ["squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%i|%j|%Z|%k"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = []
    for line in listing.splitlines():
        job, name, where, comment = line.split("|", 3)
        # A log may have been tidied away; the working directory then tells whose job it is.
        if name in known or (name.startswith(PREFIX) and Path(where) == folder):
            found.append((job, comment))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true", help="the driver is gone, although it ran on another machine")
    arguments = parser.parse_args()
    folder = Path.cwd()
    runs.check(folder, elsewhere=arguments.force)
    left = orphans(folder)
    if left:
        subprocess.run(["scancel", *(job for job, _ in left)], check=True)
        for job, comment in left:
            print(f"resume: cancelled job {job} ({comment})")
    end = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < end:
        time.sleep(1)
        left = orphans(folder)
    if left:
        jobs = ", ".join(job for job, _ in left)
        print(f"resume: jobs {jobs} did not end in {PATIENCE_S} s. Ask the site, then try again.", file=sys.stderr)
        return 1
    print("resume: no job of an earlier run is left")
    return 0


if __name__ == "__main__":
    with explained():
        sys.exit(main())

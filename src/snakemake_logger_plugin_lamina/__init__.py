"""What Snakemake loads of lamina before it reads anything: `snakemake --logger lamina`, and words about a bad file.

Snakemake finds a logger by the name of its package, and imports all that are installed whenever it starts, whichever
workflow it runs. So nothing happens here unless the workflow is lamina's own: its configuration files are then checked
before Snakemake reads them, of which it would say less. The progress of a run is shown under `--logger lamina` alone.
"""

import argparse
import os
import re
import sys
from pathlib import Path

from snakemake.common import SNAKEFILE_CHOICES

import lamina
from lamina.errors import LaminaError
from lamina_workflow.config import text
from lamina_workflow.runtime import preconditions
from lamina_workflow.runtime.log_handler import LogHandler

__all__ = ["LogHandler"]

_DRY_RUN = re.compile(r"--dry-?run|-[a-zA-Z]*n[a-zA-Z]*")
_OWN_ROOT = Path(lamina.__file__).resolve().parents[2]


def check_command(arguments: list[str]) -> None:
    """End Snakemake if it cannot run lamina's own workflow with this command line; let any other workflow be.

    It ends if a configuration file is missing or cannot be read, or results or Snakemake's own cache cannot be written.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="*", action="extend", default=[])
    parser.add_argument("--snakefile", "-s")
    parser.add_argument("--directory", "-d", default=".")
    options, _ = parser.parse_known_args(arguments)
    if not _is_own_workflow(options.snakefile):
        return
    with preconditions.end_with_message([]):
        _check_cache()
        if not any(_DRY_RUN.fullmatch(argument) for argument in arguments):
            preconditions.check_writable(Path(options.directory).absolute())
        for file in options.configfile:
            if not Path(file).is_file():
                raise LaminaError(
                    f"there is no configuration file '{file}'. Write --configfile config/NAME.yaml; targets stand "
                    "behind --."
                )
            text.read_configuration(file)


def _is_own_workflow(snakefile: str | None) -> bool:
    """Whether Snakemake runs lamina's own Snakefile, by the option `--snakefile` or where it looks without it."""
    candidates = [Path(snakefile)] if snakefile else SNAKEFILE_CHOICES
    found = next((path for path in candidates if path.is_file()), None)
    return found is not None and found.resolve() == _OWN_ROOT / "Snakefile"


def _check_cache() -> None:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        (caches / "snakemake").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaminaError(
            f"{caches} cannot be written to ({error.strerror}), and Snakemake and Hugging Face keep files there. "
            "Set XDG_CACHE_HOME and HF_HOME to folders of your own."
        ) from error


if Path(sys.argv[0]).name in ("snakemake", "__main__.py"):
    check_command(sys.argv[1:])

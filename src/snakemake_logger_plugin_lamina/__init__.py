"""What Snakemake imports of lamina before it reads anything: the logger of `--logger lamina`.

Snakemake finds a logger by the name of its package, and imports every installed one whenever it
starts, whichever workflow it runs. The logger acts under `--logger lamina` alone. If the workflow
is lamina's own, its configuration files and folders are checked here too: Snakemake reads them
next, and would say less about what is wrong. Any other workflow is left alone.
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
    """End Snakemake if it cannot run lamina's own workflow with this command line.

    It ends if a configuration file is missing or cannot be read, or if results or Snakemake's own
    cache cannot be written. For any other workflow nothing is checked.
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
                    f"there is no configuration file '{file}'. Write --configfile "
                    "config/NAME.yaml; targets go after --."
                )
            text.read_configuration(file)


def _is_own_workflow(snakefile: str | None) -> bool:
    """Whether Snakemake runs lamina's own Snakefile.

    snakefile: The option `--snakefile`; None where Snakemake looks for a file itself.
    """
    candidates = [Path(snakefile)] if snakefile else SNAKEFILE_CHOICES
    found = next((path for path in candidates if path.is_file()), None)
    own_files = (_OWN_ROOT / "Snakefile", _OWN_ROOT / "workflow/Snakefile")
    return found is not None and found.resolve() in own_files


def _check_cache() -> None:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        (caches / "snakemake").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaminaError(
            f"{caches} cannot be written to ({error.strerror}), and Snakemake and Hugging Face "
            "keep files there. Set XDG_CACHE_HOME and HF_HOME to folders of your own."
        ) from error


if Path(sys.argv[0]).name in ("snakemake", "__main__.py"):
    check_command(sys.argv[1:])

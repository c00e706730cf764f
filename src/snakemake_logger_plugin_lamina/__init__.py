"""What Snakemake loads of lamina before it reads anything: `snakemake --logger lamina`, and words about a bad file.

Snakemake finds a logger by the name of its package, and imports all that are installed whenever it starts: before it
reads the files that its command line names as configuration, of which it would say less.
"""

import argparse
import os
import sys
from pathlib import Path

from lamina.config import text
from lamina.errors import LaminaError
from lamina.runtime import failures
from lamina.runtime.progress import LogHandler

__all__ = ["LogHandler"]


def check(arguments: list[str]) -> None:
    """End Snakemake if a configuration file of its command line is missing or cannot be read, or it has no folder for
    its own cache.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="*", action="extend", default=[])
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with failures.refused([]):
        try:
            (caches / "snakemake").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaminaError(
                f"{caches} cannot be written to ({error.strerror}), and Snakemake and Hugging Face keep files there. "
                "Set XDG_CACHE_HOME and HF_HOME to folders of your own."
            ) from error
        for file in parser.parse_known_args(arguments)[0].configfile:
            if not Path(file).is_file():
                raise LaminaError(
                    f"there is no configuration file '{file}'. Write --configfile config/NAME.yaml; targets stand "
                    "behind --."
                )
            text.read_configuration(file)


if Path(sys.argv[0]).name in ("snakemake", "__main__.py"):
    check(sys.argv[1:])

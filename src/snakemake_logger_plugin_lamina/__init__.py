"""What Snakemake loads of lamina before it reads anything: `snakemake --logger lamina`, and words about a bad file.

Snakemake finds a logger by the name of its package, and imports all that are installed whenever it starts: before it
reads the files that its command line names as configuration, of which it would say less.
"""

import argparse
import sys
from pathlib import Path

from lamina.config import text
from lamina.errors import LaminaError
from lamina.runtime import failures
from lamina.runtime.progress import LogHandler

__all__ = ["LogHandler"]


def check(arguments: list[str]) -> None:
    """End Snakemake if a configuration file of its command line is missing, or cannot be read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="*", action="extend", default=[])
    with failures.refused([]):
        for file in parser.parse_known_args(arguments)[0].configfile:
            if not Path(file).is_file():
                raise LaminaError(
                    f"there is no configuration file '{file}'. Write --configfile config/NAME.yaml; targets stand "
                    "behind --."
                )
            text.check(file)


if Path(sys.argv[0]).name in ("snakemake", "__main__.py"):
    check(sys.argv[1:])

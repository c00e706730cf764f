"""What Snakemake loads of lamina before it reads anything: `snakemake --logger lamina`, and words about a bad file.

Snakemake finds a logger by the name of its package, and imports all that are installed whenever it starts, before it
reads what --configfile names, and the Snakefile after that.
"""

from pathlib import Path
from typing import Any

from snakemake.common import configfile

from lamina.config import text
from lamina.errors import LaminaError
from lamina.runtime import failures
from lamina.runtime.progress import LogHandler

__all__ = ["LogHandler"]

_read = configfile._load_configfile


def _explained(file: Any, filetype: str = "Config") -> Any:
    """Read a file as Snakemake does; one that it cannot read is refused with its line and what to write."""
    if filetype == "Config" and isinstance(file, str | Path):
        with failures.refused([]):
            if not Path(file).is_file():
                raise LaminaError(
                    f"there is no configuration file '{file}'. Write --configfile config/NAME.yaml; targets stand "
                    "behind --."
                )
            text.check(file)
    return _read(file, filetype)


configfile._load_configfile = _explained

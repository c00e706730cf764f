"""What Snakemake loads of lamina before it reads anything: `snakemake --logger lamina`, and words about a bad file.

Snakemake finds a logger by the name of its package, and imports all that are installed whenever it starts, before it
reads what --configfile names, and the Snakefile after that.
"""

from pathlib import Path
from typing import Any

from snakemake.common import configfile
from snakemake.exceptions import WorkflowError

from lamina.config import text
from lamina.errors import LaminaError
from lamina.workflow.progress import LogHandler

__all__ = ["LogHandler"]

_read = configfile._load_configfile


def _explained(file: Any, filetype: str = "Config") -> Any:
    """Read a file as Snakemake does; where it cannot, say which line is wrong and what to write."""
    try:
        return _read(file, filetype)
    except (WorkflowError, UnicodeDecodeError):
        if filetype == "Config" and isinstance(file, str | Path) and Path(file).is_file():
            try:
                text.check(file)
            except LaminaError as error:
                raise WorkflowError(str(error)) from None
        raise


configfile._load_configfile = _explained

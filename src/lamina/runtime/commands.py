"""How the commands of rules run: where they find the library, on which interpreter, and on which device."""

import shlex
from pathlib import Path

_SETTINGS = "TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1"
# Only the preparing rules may download.
_OFFLINE = "HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1"


def prefix(root: Path, interpreter: Path | None) -> str:
    """The beginning of every command of a rule, for `shell.prefix`, which needs doubled braces.

    Commands find the library although it is not installed, and the scripts in `$SCRIPTS`. GPU stages begin with
    `on_gpu COUNT`: they start on devices of their own and stay off the network.

    Parameters
    ----------
    root
        The folder of the Snakefile; any character may stand in its name.
    interpreter
        The Python to use; None where Snakemake deploys one, which must then come first on PATH.
    """
    parts = [
        "set -euo pipefail",
        f"export PYTHONPATH={shlex.quote(f'{root}/src')} SCRIPTS={shlex.quote(f'{root}/workflow/scripts')} {_SETTINGS}",
        *([f"export PATH={shlex.quote(str(interpreter.parent))}:$PATH"] if interpreter else []),
        f'on_gpu() {{ {_OFFLINE} python -m lamina.runtime.devices "$@"; }}',
    ]
    return "".join(f"{part}; " for part in parts).replace("{", "{{").replace("}", "}}")

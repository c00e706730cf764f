"""How the commands of rules run: where they find the library, on which interpreter, and a GPU stage on which device."""

import shlex
from pathlib import Path

_SETTINGS = "TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1"
# GPU stages start on a device of their own and stay off the network: only the preparing rules may download.
_ON_GPU = 'on_gpu() { HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 python -m lamina.workflow.gpu_lock "$@"; }'


def prefix(root: Path, interpreter: Path | None) -> str:
    """What every command of a rule begins with, for `shell.prefix`, whose braces are doubled.

    Commands find the library without its being installed, scripts as `$SCRIPTS`, and GPU stages begin with `on_gpu`.

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
        _ON_GPU,
    ]
    return "".join(f"{part}; " for part in parts).replace("{", "{{").replace("}", "}}")

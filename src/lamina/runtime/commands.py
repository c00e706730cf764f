"""How the commands of rules run: where they find the library, on which interpreter, and on which device."""

import os
import shlex
import sys
from pathlib import Path

from lamina.runtime import devices as gpu_lock
from lamina.runtime import warm_client
from lamina.runtime.fingerprint import packages

_SETTINGS = "TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1"
# Only the preparing rules may download.
_OFFLINE = "HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1"
_HEAVY = {"datasets", "lm-eval", "peft", "torch", "transformers"}


def can_be_warm() -> bool:
    """Whether jobs here can be forks of a parent: on Linux without a GPU, unless LAMINA_WARM=0 says otherwise."""
    return sys.platform == "linux" and os.environ.get("LAMINA_WARM") != "0" and not gpu_lock.devices(os.environ)


def prefix(root: Path, interpreter: Path | None, warm: str | None = None) -> str:
    """The beginning of every command of a rule, for `shell.prefix`, which needs doubled braces.

    Commands find the library although it is not installed, and the scripts in `$SCRIPTS`. GPU stages begin with
    `on_gpu COUNT`: they start on devices of their own and stay off the network.

    Parameters
    ----------
    root
        The folder of the Snakefile; any character may stand in its name.
    interpreter
        The Python to use; None where Snakemake deploys one, which must then come first on PATH.
    warm
        The address where `lamina.runtime.warm` listens, so that `python SCRIPT` becomes a fork of a parent there; None
        without such a parent.
    """
    parts = [
        "set -euo pipefail",
        f"export PYTHONPATH={shlex.quote(f'{root}/src')} SCRIPTS={shlex.quote(f'{root}/workflow/scripts')} {_SETTINGS}",
        *([f"export PATH={shlex.quote(str(interpreter.parent))}:$PATH"] if interpreter else []),
        *(_forked(root, warm) if warm else [f'on_gpu() {{ {_OFFLINE} python -m lamina.runtime.devices "$@"; }}']),
    ]
    return "".join(f"{part}; " for part in parts).replace("{", "{{").replace("}", "}}")


def _forked(root: Path, address: str) -> list[str]:
    """Shell functions that replace the interpreter and the lock of devices."""
    scripts = sorted(file.stem for file in (root / "workflow/scripts").glob("*.py"))
    heavy = ",".join(script for script in scripts if packages(script, root=root / "src") & _HEAVY)
    client = shlex.join(["-I", "-S", warm_client.__file__, address, heavy])
    return [
        f'python() {{ case "${{1-}}" in *.py) command python {client} "$@" ;; *) command python "$@" ;; esac; }}',
        f'on_gpu() {{ shift; echo "host=$HOSTNAME" >&2; {_OFFLINE} "$@"; }}',
    ]

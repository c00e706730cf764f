"""The prefix of every command, run by the shell that Snakemake runs it with."""

import subprocess
import sys
from pathlib import Path

import pytest

from lamina.runtime import commands

SOURCE = Path(__file__).resolve().parents[2] / "src"


def run(root: Path, interpreter: Path | None, command: str) -> str:
    """What a command prints. Snakemake formats the prefix, which turns double braces into single ones."""
    prefix = commands.prefix(root, interpreter).format()
    done = subprocess.run(
        ["bash", "-c", prefix + command], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["plain", "with blanks in it", "it's {quoted} $HOME"])
def test_any_folder_may_hold_the_clone(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    assert run(root, None, 'echo "$PYTHONPATH:$SCRIPTS"') == f"{root}/src:{root}/workflow/scripts"


def test_the_interpreter_comes_first_on_the_path(tmp_path: Path) -> None:
    python = tmp_path / "my bin/python"
    assert run(tmp_path, python, "echo $PATH") == f"{tmp_path}/my bin:/usr/bin:/bin"


def test_the_path_is_left_alone_where_snakemake_deploys_the_software(tmp_path: Path) -> None:
    assert run(tmp_path, None, "echo $PATH") == "/usr/bin:/bin"


@pytest.mark.parametrize("form", ["-c", "script.py"])
def test_gpu_stages_stay_off_the_network_and_others_do_not(tmp_path: Path, form: str) -> None:
    code = "import os; print(os.environ.get('HF_HUB_OFFLINE'))"
    (tmp_path / "script.py").write_text(code)
    ask = f'python -c "{code}"' if form == "-c" else f"python {tmp_path}/script.py"
    assert run(SOURCE.parent, Path(sys.executable), f"on_gpu 1 {ask} 2> /dev/null") == "1"
    assert run(SOURCE.parent, Path(sys.executable), ask) == "None"


def test_a_failing_part_of_a_command_fails_it(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run(tmp_path, None, "false | cat")

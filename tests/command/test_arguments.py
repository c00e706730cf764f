"""What `lamina` makes of its arguments: a request, a module's arguments, an upload."""

import os
import shlex
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lamina.errors import LaminaError
from lamina_workflow import cli
from lamina_workflow.checks import advice
from lamina_workflow.commands import explain
from lamina_workflow.commands import push as pushing
from lamina_workflow.prune_study import PruneRequest
from lamina_workflow.runtime import failures

VARIANT = "small/mine/deepest/removed=1/none/none"
# What commands set for the processes that they start.
VARIABLES = (advice.SWITCH, failures.FOLDER, "LAMINA_EXPORT_FORM", "LAMINA_EXPORT_SHARD")


@pytest.fixture(autouse=True)
def restored_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "of an earlier command")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The processes that would run, in a folder with a configuration."""
    Path("config.yaml").write_text("{}")
    noted_commands: list[list[str]] = []
    monkeypatch.setattr(cli, "_run_command", noted_commands.append)
    monkeypatch.setattr(cli, "_count_jobs", lambda configuration: 3)
    return noted_commands


def invoke(arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli.app, shlex.split(arguments), **options)


@pytest.mark.parametrize(
    ("arguments", "options", "folder"),
    [
        (
            "--questions q.jsonl --text b.txt --remove 25% --keep 90% --revision v --layers 7 "
            "--folder f --seed 3",
            {
                "questions": Path("q.jsonl"),
                "text": Path("b.txt"),
                "remove": "25%",
                "keep": "90%",
                "revision": "v",
                "layers": 7,
                "seed": 3,
            },
            "f",
        ),
        ("--task arc_easy --fit 6GB", {"task": "arc_easy", "fit": "6GB"}, "lamina-model"),
        ("--faster 20%", {"faster": "20%"}, "lamina-model"),
    ],
)
def test_options_of_prune_are_those_of_the_request(
    monkeypatch: pytest.MonkeyPatch, arguments: str, options: dict[str, Any], folder: str
) -> None:
    written: list[tuple[PruneRequest, Path]] = []

    def refuse(request: PruneRequest, folder: Path) -> NoReturn:
        written.append((request, folder))
        raise LaminaError("not written")

    monkeypatch.setattr(cli, "write_study", refuse)

    result = invoke(f"prune model {arguments}")

    assert isinstance(result.exception, LaminaError)
    assert written == [(PruneRequest(source="model", **options), Path(folder))]


@pytest.mark.parametrize(("made_folder", "stays"), [("new", False), ("new/results", True)])
def test_a_time_that_is_too_short_leaves_only_what_is_prepared(
    monkeypatch: pytest.MonkeyPatch, made_folder: str, stays: bool
) -> None:
    def fail(request: PruneRequest, folder: Path, minutes: float, cores: str) -> NoReturn:
        assert (folder, minutes) == (Path("new"), 5)
        Path(made_folder).mkdir(parents=True)
        raise LaminaError("too short")

    monkeypatch.setattr(cli, "_fit_into_time", fail)

    result = invoke("prune model --minutes 5 --folder new")

    assert isinstance(result.exception, LaminaError)
    assert Path("new").exists() == stays


def test_a_time_that_is_too_short_leaves_a_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any) -> NoReturn:
        raise LaminaError("too short")

    monkeypatch.setattr(cli, "_fit_into_time", fail)
    Path("mine").mkdir()

    result = invoke("prune model --minutes 5 --folder mine")

    assert isinstance(result.exception, LaminaError)
    assert Path("mine").exists()


@pytest.mark.parametrize(
    ("arguments", "module", "end"),
    [
        (
            "plan --rate 100 --calibrate --cores 4",
            "lamina_workflow.cost.forecast",
            "results/cost.json --cores 4 --jobs 3 --rate 100 --calibrate",
        ),
        ("plan", "lamina_workflow.cost.forecast", "results/cost.json --cores all --jobs 3"),
        (
            "query which_model_to_take --csv",
            "lamina_workflow.report.shell",
            "--csv which_model_to_take",
        ),
        (
            "query which_model_to_take --wide",
            "lamina_workflow.report.shell",
            "--wide which_model_to_take",
        ),
        ("sql", "lamina_workflow.report.shell", ""),
        ("compare a b", "lamina_workflow.report.compare", "-- a b"),
        (
            "leaderboard a b --output x.html",
            "lamina_workflow.report.leaderboard",
            "--output x.html -- a b",
        ),
        ("explain A3b", "lamina_workflow.commands.explain", "A3b"),
    ],
)
def test_commands_pass_their_arguments_on_to_their_modules(
    commands: list[list[str]], arguments: str, module: str, end: str
) -> None:
    result = invoke(arguments)

    assert result.exit_code == 0, result.output
    assert commands[-1] == [*cli.MODULE_COMMAND, module, *end.split()]


def test_scores_of_lm_eval_are_requested_from_snakemake(commands: list[list[str]]) -> None:
    result = invoke(f"lm-eval {VARIANT}")

    (command,) = commands
    assert command[: len(cli.MODULE_COMMAND) + 1] == [*cli.MODULE_COMMAND, "snakemake"]
    assert command[-2:] == ["--", f"results/lm_eval/{VARIANT}"]
    assert result.output == f"written  results/lm_eval/{VARIANT}\n"


@pytest.mark.parametrize(
    ("arguments", "form", "shard"), [("--form code --shard 2GB", "code", "2GB"), ("", "", "")]
)
def test_an_export_has_the_form_and_the_files_that_are_asked_for(
    commands: list[list[str]], arguments: str, form: str, shard: str
) -> None:
    """There is no export to describe, where the command ends."""
    invoke(f"export {VARIANT} {arguments}")

    (command,) = commands
    assert command[-2:] == ["--", f"results/exports/{VARIANT}"]
    assert os.environ["LAMINA_EXPORT_FORM"] == form
    assert os.environ["LAMINA_EXPORT_SHARD"] == shard


@pytest.mark.parametrize(
    ("arguments", "answer", "exit_code", "steps"),
    [
        ("", "n\n", 1, ["me/smaller, private"]),
        ("", "y\n", 0, ["me/smaller, private", "uploaded"]),
        ("--public", "n\n", 1, ["me/smaller, public"]),
        ("--yes", "", 0, ["me/smaller, private", "uploaded"]),
        ("--public --yes", "", 0, ["me/smaller, public", "uploaded"]),
    ],
)
def test_an_upload_is_private_and_confirmed_by_default(
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    answer: str,
    exit_code: int,
    steps: list[str],
) -> None:
    noted_steps: list[str] = []

    class NotedUpload:
        def __init__(self, repository: str, is_private: bool) -> None:
            noted_steps.append(f"{repository}, {'private' if is_private else 'public'}")

        def describe(self, folder: Path) -> str:
            return f"the files of {folder}"

        def run(self, folder: Path, message: str) -> str:
            assert (folder, message) == (Path("export"), VARIANT)
            noted_steps.append("uploaded")
            return "its address"

    monkeypatch.setattr(pushing, "Upload", NotedUpload)
    monkeypatch.setattr(cli, "_export", lambda *arguments: Path("export"))

    result = invoke(f"push {VARIANT} me/smaller {arguments}", input=answer)

    assert result.exit_code == exit_code
    assert noted_steps == steps
    assert result.output.startswith("the files of export\n")
    assert ("its address" in result.output) == (exit_code == 0)


@pytest.mark.parametrize(
    ("named", "file"),
    [
        ("m/c/s/removed=2/ghost/none", "results/plans/m/c/s/removed=2.json"),
        ("results/tables/x.parquet", "results/tables/x.parquet"),
    ],
)
def test_a_variant_is_explained_by_its_plan_and_a_file_by_itself(named: str, file: str) -> None:
    assert explain.find_file(named) == Path(file)

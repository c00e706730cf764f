"""`lamina`, the command: a smaller model from one line, and the workflow without make.

Snakemake runs what these commands ask for, in the current folder or in one that a command names. So
a run that was stopped goes on with the same command, and `snakemake` itself can be used beside them.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Annotated

import typer

from lamina.errors import LaminaError, report_errors
from lamina.paths import PROJECT
from lamina.version import VERSION
from lamina_workflow.prune_study import PruneRequest, write_study

app = typer.Typer(
    name="lamina",
    help="Which layers of a language model matter for your task, which can go, and how much of the "
    "damage can be repaired.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Configuration = Annotated[
    Path | None,
    typer.Argument(help="Configuration file; by default config/config.yaml.", show_default=False),
]
Cores = Annotated[str, typer.Option(help="Cores that the run may use: a number, or all.")]
# The forecast is made together with the study, for the time left.
WHOLE_STUDY = ("all", "results/cost.json")
# -P: a file of the current folder is not imported in place of a package.
MODULE_COMMAND = (sys.executable, "-P", "-m", "lamina_workflow.runtime.interruptible")
DEFAULT_CONFIGURATION = Path("config/config.yaml")
# Parts of the embedded study, which `example` copies.
EXAMPLE_PARTS = ("config/config.yaml", "resources/reference", "workflow/tasks")


@app.command()
def prune(
    model: Annotated[
        str, typer.Argument(help="A folder with config.json, a .gguf file, or an id of the hub.")
    ],
    questions: Annotated[
        Path | None,
        typer.Option(
            help='Your task, a JSON object in each line: {"query": …, "choices": […], "gold": 0}.'
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task of lm-eval, such as arc_easy.")] = None,
    text: Annotated[
        Path | None, typer.Option(help="General text that must stay readable, .txt or .jsonl.")
    ] = None,
    remove: Annotated[str, typer.Option(help="Share of the layers, or their number.")] = "25%",
    fit: Annotated[
        str | None, typer.Option(help="Memory that weights and cache may take, such as 6GB.")
    ] = None,
    faster: Annotated[str | None, typer.Option(help="Time to save per token, such as 20%.")] = None,
    keep: Annotated[
        str, typer.Option(help="Share of the base model's score on your task to keep.")
    ] = "95%",
    revision: Annotated[str | None, typer.Option(help="Revision of a model of the hub.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of a model of the hub.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for the study; by default lamina-MODEL.", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Random seed for splitting your questions and text.")
    ] = 0,
    cores: Cores = "all",
) -> None:
    """Remove the layers that your task needs least, repair the rest, and say what is left.

    The study is written into a folder, with its configuration: edit it and `lamina run` it to go
    further. The same command goes on after an interruption.

        lamina prune models/mine --questions support.jsonl --text book.txt --remove 25%
        lamina prune mine.gguf --task arc_easy --text book.txt --fit 6GB
    """
    request = PruneRequest(
        source=model,
        questions=questions,
        task=task,
        text=text,
        remove=remove,
        fit=fit,
        faster=faster,
        keep=keep,
        revision=revision,
        layers=layers,
        seed=seed,
    )
    study = write_study(request, folder)
    typer.echo("\n".join(study.notes))
    _run_snakemake(study.folder, cores, Path("config.yaml"), *WHOLE_STUDY)
    _print_ending(study.folder)


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path("lamina-example"),
) -> None:
    """Copy the embedded study into a folder: a small trained model, its tasks, its configuration."""
    if folder.exists() and any(folder.iterdir()):
        raise LaminaError(f"{folder} is not empty. Name a new folder: lamina example FOLDER")
    for part in EXAMPLE_PARTS:
        target = folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        source = PROJECT / part
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    typer.echo(f"cd {folder} && lamina run      # some minutes on two cores")


@app.command()
def run(configuration: Configuration = None, cores: Cores = "all") -> None:
    """Run the studies of a configuration in the current folder, up to the report."""
    _run_snakemake(Path.cwd(), cores, configuration, *WHOLE_STUDY)
    _print_ending(Path.cwd())


@app.command()
def plan(
    configuration: Configuration = None,
    rate: Annotated[
        str | None, typer.Option(help="Sustained TFLOP/s of your device, such as 100.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="Measure this machine, also if it has a GPU.")
    ] = False,
    cores: Cores = "all",
) -> None:
    """Say what a run will take, stage by stage: time, memory, disk."""
    _run_snakemake(Path.cwd(), cores, configuration, "results/cost.json")
    options = ["--cores", cores, "--jobs", str(_count_jobs(configuration))]
    if rate is not None:
        options += ["--rate", rate]
    if calibrate:
        options.append("--calibrate")
    _run_module("lamina_workflow.cost.forecast", "results/cost.json", *options)


@app.command()
def export(
    variant: Annotated[
        str, typer.Argument(help="model/calibration/selector/removed=n/repair/healing")
    ],
    configuration: Configuration = None,
    form: Annotated[str, typer.Option(help="auto, stock, code or gguf.")] = "auto",
    shard: Annotated[str, typer.Option(help="Largest file, such as 2GB.")] = "",
    cores: Cores = "all",
) -> None:
    """Write a variant as a Hugging Face checkpoint, or as a GGUF file."""
    # Jobs of Snakemake inherit these; lamina_workflow.stages.export reads them.
    os.environ["LAMINA_EXPORT_FORM"] = "" if form == "auto" else form
    os.environ["LAMINA_EXPORT_SHARD"] = shard
    _run_snakemake(Path.cwd(), cores, configuration, f"results/exports/{variant}")
    typer.echo(f"exported  results/exports/{variant}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A results folder.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Say which numbers of two runs differ by more than their error."""
    _run_module("lamina_workflow.report.compare", "--", str(first), str(second))


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(help="A table, plan, patch or adapter under results/.")],
) -> None:
    """Say where a result came from: its rule, options, inputs and code."""
    _run_module("lamina.store.checksum", str(file))


@app.command()
def query(
    name: Annotated[
        str, typer.Argument(help="Name of a query in sql/queries, such as how_healing_went.")
    ],
    wide: Annotated[bool, typer.Option(help="Print all columns.")] = False,
    csv: Annotated[bool, typer.Option(help="Print CSV, with all digits.")] = False,
) -> None:
    """Answer a question about the run in the current folder."""
    options = [name for name, is_on in (("--wide", wide), ("--csv", csv)) if is_on]
    _run_module("lamina_workflow.report.shell", *options, name)


@app.command()
def sql() -> None:
    """Open DuckDB's shell on the results of the current folder."""
    _run_module("lamina_workflow.report.shell")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"lamina {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of all commands."""


def _run_snakemake(folder: Path, cores: str, configuration: Path | None, *targets: str) -> None:
    """Run Snakemake in a folder; ends the program with Snakemake's status if it fails."""
    with chdir(folder):
        command = [*_snakemake_command(cores, configuration), "--logger", "lamina"]
        if targets:
            command += ["--", *targets]
        _run_command(command)


def _snakemake_command(cores: str, configuration: Path | None) -> list[str]:
    """Snakemake with the installed rules.

    Raises LaminaError if there is no configuration.
    """
    file = configuration or DEFAULT_CONFIGURATION
    if not file.is_file():
        raise LaminaError(
            f"there is no file {file}. Name a configuration, or begin with `lamina prune` or "
            "`lamina example`."
        )
    command = [*MODULE_COMMAND, "snakemake", "--snakefile", str(PROJECT / "Snakefile")]
    command += ["--cores", cores]
    if configuration is not None:
        command += ["--configfile", str(configuration)]
    return command


def _count_jobs(configuration: Path | None) -> int:
    """The jobs that a run would still do."""
    command = [*_snakemake_command("1", configuration), "--dry-run", "--quiet", "rules"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    totals = [line.split()[1] for line in printed.splitlines() if line.startswith("total ")]
    return int(totals[-1]) if totals else 0


def _run_module(module: str, *arguments: str) -> None:
    _run_command([*MODULE_COMMAND, module, *arguments])


def _run_command(command: list[str]) -> None:
    process = subprocess.Popen(command)
    # The terminal sends Ctrl-C to the process too. It ends its jobs, unlocks the folder, and says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = process.wait()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if status != 0:
        raise SystemExit(status)


def _print_ending(folder: Path) -> None:
    with chdir(folder):
        _run_module("lamina_workflow.report.ending")


def main() -> None:
    """Run the command line; errors that a user can correct end it with their message."""
    with report_errors():
        app()


if __name__ == "__main__":
    main()

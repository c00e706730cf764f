"""`lamina`, the command: a smaller model from one line, and the workflow without make.

Snakemake runs what these commands request, in the current folder or in one that a command names. So
the same command continues a stopped run, and `snakemake` itself can be used as well.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina import paths
from lamina.errors import LaminaError, report_errors
from lamina.paths import PROJECT, RESULTS
from lamina.variant import FORM
from lamina.version import VERSION
from lamina_workflow.checks import advice
from lamina_workflow.config.text import DEFAULT_CONFIGURATIONS, read_configuration
from lamina_workflow.cost.overtime import describe_overtime
from lamina_workflow.papers.study import (
    PAPERS,
    SAMPLES,
    PaperRequest,
    name_folder,
    write_paper,
)
from lamina_workflow.prune_study import (
    CONFIGURATION,
    SAMPLE_SIZES,
    PruneRequest,
    default_folder,
    find_written,
    prepare_study,
    write_study,
)
from lamina_workflow.runtime import failures
from lamina_workflow.runtime.devices import list_devices
from lamina_workflow.runtime.waiting import saying_what_goes_on

app = typer.Typer(
    name="lamina",
    help="Which layers of a language model matter for your task, which can be removed, and how "
    "much of the damage can be repaired.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Configuration = Annotated[
    Path | None,
    typer.Argument(
        help="Configuration file; by default config/config.yaml, or config.yaml.",
        show_default=False,
    ),
]
VariantArgument = Annotated[
    str,
    typer.Argument(help=f"A handle from the report, such as A3b, or {FORM}.", metavar="VARIANT"),
]
Cores = Annotated[str, typer.Option(help="CPU cores for the run: a number, or all.")]
# The forecast is made together with the study, to show the time left.
WHOLE_STUDY = ("all", "results/cost.json")
FORECAST_CONFIGURATION = "forecast.yaml"
# -P: no file of the current folder is imported in place of a package.
MODULE_COMMAND = (sys.executable, "-P", "-m", "lamina_workflow.runtime.interruptible")
# Parts of the embedded study, which `example` copies.
EXAMPLE_PARTS = ("config/config.yaml", "resources/reference", "workflow/tasks")


@app.command()
def prune(
    model: Annotated[
        str, typer.Argument(help="A folder with config.json, a .gguf file, or a hub id.")
    ],
    questions: Annotated[
        Path | None,
        typer.Option(
            help='Your task, one JSON object per line: {"query": …, "choices": […], "gold": 0}.'
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="An lm-eval task, such as arc_easy.")] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="General text that the model must still predict well, .txt or .jsonl."),
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option(help="Share of layers to remove, or their number; by default 25%."),
    ] = None,
    fit: Annotated[
        str | None, typer.Option(help="Maximum memory of weights and KV cache, such as 6GB.")
    ] = None,
    faster: Annotated[
        str | None, typer.Option(help="Share of the time per token to save, such as 20%.")
    ] = None,
    keep: Annotated[
        str, typer.Option(help="Share of the base model's score on your task to keep.")
    ] = "95%",
    revision: Annotated[str | None, typer.Option(help="Revision of a hub model.")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers of a hub model.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for the study; by default lamina-MODEL.", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Random seed for splitting your questions and text.")
    ] = 0,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Time limit for the study on this machine, once the model is prepared. If "
            "needed, fewer samples choose the layers.",
        ),
    ] = None,
    cores: Cores = "all",
) -> None:
    """Remove the layers that your task needs least, repair the rest, and report what is left.

    The study and its configuration are written into a folder. To continue from there, edit the
    configuration and run `lamina run`. After an interruption, the same command resumes.

    ```
    lamina prune models/mine --questions support.jsonl --text book.txt --remove 25%
    lamina prune models/mine --task arc_easy --text book.txt --fit 6GB
    lamina prune mine.gguf --questions support.jsonl --minutes 30
    ```
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
    folder = folder or default_folder(model)
    typer.echo("Reading the model's configuration and your data …", err=True)
    if minutes is not None:
        with _leaving_no_new_folder(folder):
            request = _fit_into_time(request, folder, minutes, cores)
    study = write_study(request, folder)
    typer.echo("\n".join(study.notes))
    start_time = time.monotonic()
    _run_snakemake(study.folder, cores, Path(CONFIGURATION), *WHOLE_STUDY)
    seconds = time.monotonic() - start_time
    _print_ending(study.folder, Path(CONFIGURATION))
    if minutes is not None:
        for line in describe_overtime(minutes, seconds, os.getloadavg()[2]):
            typer.echo(line)
    typer.echo(f"These files and commands are those of the folder: cd {study.folder}")


@contextmanager
def _leaving_no_new_folder(folder: Path) -> Iterator[None]:
    """Remove the folder if the block created it and ends with an error that a user can correct.

    Anything prepared stays: with more minutes, the same command continues from there.
    """
    is_new = not folder.exists()
    try:
        yield
    except LaminaError:
        if is_new and not (folder / RESULTS).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _fit_into_time(request: PruneRequest, folder: Path, minutes: float, cores: str) -> PruneRequest:
    """The request with the most samples whose study takes at most `minutes` here.

    If the folder already holds the study, its samples are kept, so that the run continues.

    Raises LaminaError if no number of samples fits.
    """
    sized_requests = {
        n_samples: replace(request, n_samples=n_samples) for n_samples in SAMPLE_SIZES
    }
    largest_request = sized_requests[max(SAMPLE_SIZES)]
    if (folder / CONFIGURATION).exists():
        # None if it is another study, which is then refused as it is without --minutes.
        written_request = find_written(sized_requests.values(), folder)
        return written_request or largest_request
    configurations: dict[int, dict[str, Any]] = {}
    for n_samples, sized_request in sized_requests.items():
        configuration = prepare_study(sized_request).configuration
        if configuration not in configurations.values():
            configurations[n_samples] = configuration

    forecast_file = folder / FORECAST_CONFIGURATION
    forecast_file.unlink(missing_ok=True)  # left by a command that was stopped
    write_study(largest_request, folder, FORECAST_CONFIGURATION)
    _run_snakemake(folder, cores, Path(FORECAST_CONFIGURATION), "results/cost.json")
    with chdir(folder):
        with saying_what_goes_on("Counting the jobs of the study"):
            n_jobs = _count_jobs(Path(FORECAST_CONFIGURATION))
        with saying_what_goes_on("Measuring how fast this machine is, for some 20 seconds"):
            # Imports torch, so it is imported only here.
            from lamina_workflow.checks.load import load_configuration
            from lamina_workflow.cost import sample_sizes

            machine = sample_sizes.measure_machine(cores)
        with saying_what_goes_on("Counting the work with fewer questions and documents"):
            sized_configurations = {
                n_samples: load_configuration(raw, Path.cwd())
                for n_samples, raw in configurations.items()
            }
            forecasts = sample_sizes.forecast_sizes(sized_configurations, n_jobs, machine)
    forecast_file.unlink()
    chosen = sample_sizes.choose_size(forecasts, minutes)
    n_given = None  # unknown for a task of lm-eval
    if request.task is None:
        files = prepare_study(largest_request).files
        n_given = max((len(records) for records in files.values()), default=None)
    typer.echo(sample_sizes.describe_choice(forecasts, chosen, minutes, n_given))
    return sized_requests[chosen.n_samples]


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path("lamina-example"),
) -> None:
    """Copy the embedded study into a folder: a small trained model, its tasks, its configuration.

    It runs in a few minutes on two cores, without a download.

    ```
    lamina example && cd lamina-example && lamina run
    ```
    """
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
    """Run the studies of a configuration in the current folder, up to the report.

    Finished jobs are not repeated. Jobs that a change of the configuration affects run again.

    ```
    lamina run
    lamina run config/mine.yaml --cores 4
    ```
    """
    _run_snakemake(Path.cwd(), cores, configuration, *WHOLE_STUDY, advises=True)
    _print_ending(Path.cwd(), configuration)


@app.command()
def paper(
    name: Annotated[str, typer.Argument(help=f"{', '.join(PAPERS)}: a file of config/papers.")],
    study: Annotated[
        list[str] | None,
        typer.Option(help="Run only this study of the file; may be repeated."),
    ] = None,
    small: Annotated[
        str | None,
        typer.Option(
            help="A folder with config.json or a .gguf file: one small model that replaces all "
            "models.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="With --small: a folder of questions and texts that replaces the data of the hub.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --small: maximum number of questions or texts of a calibration or test.",
        ),
    ] = SAMPLES,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the study; by default lamina-NAME, and -STUDY.", show_default=False
        ),
    ] = None,
    cores: Cores = "all",
) -> None:
    """Run the studies of a paper, and compare its published numbers with your own.

    With --small, the same studies run with few samples on one small model: every row is filled,
    with other numbers. After an interruption, the same command resumes.

    ```
    lamina paper ghosted-layers
    lamina paper ghosted-layers --study repairs
    lamina paper ghosted-layers --small models/mine --data questions-and-texts
    ```
    """
    request = PaperRequest(name, tuple(study or ()), small, data, samples)
    folder = folder or name_folder(request)
    configuration = Path(CONFIGURATION)
    with _leaving_no_new_folder(folder):
        notes = write_paper(request, folder)
        # Imports transformers, so it is imported only here.
        from lamina_workflow.checks.load import load_configuration

        with chdir(folder):
            load_configuration(read_configuration(configuration), Path.cwd())
    typer.echo("\n".join(notes))
    # With --small, few samples are intended, so there is no advice about them.
    _run_snakemake(folder, cores, configuration, *WHOLE_STUDY, advises=small is None)
    _print_ending(folder, configuration)
    with chdir(folder):
        _run_module("lamina_workflow.report.shell", "what_papers_report")


@app.command()
def plan(
    configuration: Configuration = None,
    rate: Annotated[
        str | None, typer.Option(help="Sustained TFLOP/s of your device, such as 100.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="Measure this machine even if it has a GPU.")
    ] = False,
    cores: Cores = "all",
) -> None:
    """Estimate what a run will cost, stage by stage: time, memory, disk.

    Without a GPU, the speed of this machine is measured for about 20 seconds.

    ```
    lamina plan config/mine.yaml
    lamina plan config/mine.yaml --rate 100
    ```
    """
    _run_snakemake(Path.cwd(), cores, configuration, "results/cost.json", advises=True)
    options = ["--cores", cores, "--jobs", str(_count_jobs(configuration))]
    if rate is not None:
        options += ["--rate", rate]
    if calibrate:
        options.append("--calibrate")
    _run_module("lamina_workflow.cost.forecast", "results/cost.json", *options)


@app.command()
def export(
    variant: VariantArgument,
    configuration: Configuration = None,
    form: Annotated[str, typer.Option(help="auto, stock, code or gguf.")] = "auto",
    shard: Annotated[str, typer.Option(help="Maximum size of a file, such as 2GB.")] = "",
    cores: Cores = "all",
) -> None:
    """Write a variant as a Hugging Face checkpoint, or as a GGUF file.

    The export is loaded back and compared with the variant before the command succeeds.

    ```
    lamina export model/task/best/removed=6/ghost_mixed/none
    lamina export model/task/best/removed=6/none/none --form gguf
    ```
    """
    variant = _variant_of(variant)
    folder = _export(variant, configuration, form, shard, cores)
    from lamina_workflow.commands.exported import describe_export

    typer.echo("\n".join(describe_export(folder, variant, Path(RESULTS))))


@app.command()
def judge(
    variant: VariantArgument,
    questions: Annotated[
        Path, typer.Argument(help="A .jsonl file of questions that the study has not used.")
    ],
    configuration: Configuration = None,
) -> None:
    """Measure new questions once, on a variant and on the base model.

    The test questions of a study are used to choose between its variants, so the chosen one looks
    better on them than it is. New questions are not used for any choice. They show what to expect
    of the variant, and whether it keeps the share of the base model's score that the configuration
    requires (`report: {keep: 95%}`).

    ```
    lamina judge model/task/best/removed=6/ghost_mixed/none test.jsonl
    ```
    """
    name = _variant_of(variant)  # before the slow imports
    os.environ["TQDM_DISABLE"] = "1"  # the bars of lm-eval count requests before they run
    with saying_what_goes_on(f"Measuring {questions} on {variant} and its base model"):
        from lamina_workflow.commands.judge import describe_judgement, judge_variant, read_keep

        logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about defaults
        keep = read_keep(configuration or _default_configuration())
        judgement, is_new = judge_variant(name, questions, Path(RESULTS))
    typer.echo("\n".join(describe_judgement(judgement, is_new, keep)))


@app.command()
def chat(
    variant: VariantArgument,
    prompt: Annotated[
        str | None, typer.Option(help="A single prompt; without it, you are asked for prompts.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of a reply.")] = 128,
) -> None:
    """Compare the replies of the base model and a variant, side by side, and their speed.

    Replies are decoded greedily. The tokenizer's chat template is used if there is one. Each prompt
    starts a new conversation.

    ```
    lamina chat model/task/best/removed=6/ghost_mixed/none
    lamina chat model/task/best/removed=6/ghost_mixed/none --prompt "Water freezes at"
    ```
    """
    name = _variant_of(variant)  # before the slow imports
    typer.echo(f"loading {variant} and its base model …", err=True)
    from lamina_workflow.commands import chat as side_by_side

    side_by_side.chat(name, prompt, tokens, Path(RESULTS))


@app.command()
def push(
    variant: VariantArgument,
    repository: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face hub.")],
    configuration: Configuration = None,
    public: Annotated[
        bool, typer.Option("--public", help="Make it readable by everybody.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Upload without confirmation.")] = False,
    form: Annotated[str, typer.Option(help="auto, stock, code or gguf.")] = "auto",
    cores: Cores = "all",
) -> None:
    """Export a variant and upload it to the Hugging Face hub, private by default.

    The command first says what it will upload where, and asks for confirmation.

    ```
    lamina push model/task/best/removed=6/ghost_mixed/none me/smaller
    lamina push model/task/best/removed=6/ghost_mixed/none me/smaller --public --yes
    ```
    """
    from lamina_workflow.commands.push import Upload

    variant = _variant_of(variant)
    upload = Upload(repository, is_private=not public)
    folder = _export(variant, configuration, form, "", cores)
    typer.echo(upload.describe(folder))
    if not yes:
        typer.confirm("Upload?", abort=True)
    typer.echo(upload.run(folder, variant))


def _variant_of(text: str) -> str:
    """The variant that a user names, in full or by its handle in the report."""
    from lamina_workflow.study.handles import resolve_variant

    return resolve_variant(text)


def _export(variant: str, configuration: Path | None, form: str, shard: str, cores: str) -> Path:
    """Export a variant and return its folder; an existing export is kept."""
    # Snakemake's jobs inherit these variables; lamina_workflow.stages.export reads them.
    os.environ["LAMINA_EXPORT_FORM"] = "" if form == "auto" else form
    os.environ["LAMINA_EXPORT_SHARD"] = shard
    folder = Path(paths.export(variant))
    if any(folder.glob("*.gguf")) != (form == "gguf") and folder.exists():
        typer.echo(f"This replaces the export of another form in {folder}.", err=True)
    typer.echo(f"exporting {variant}: it is written, loaded back and compared …", err=True)
    _run_snakemake(Path.cwd(), cores, configuration, str(folder))
    return folder


@app.command()
def lm_eval(
    variant: VariantArgument, configuration: Configuration = None, cores: Cores = "all"
) -> None:
    """Write the scores of a variant, and each question with its answers, as lm-eval's files.

    The base model is model/none/none/removed=0/none/none.

    ```
    lamina lm-eval model/task/best/removed=6/ghost_mixed/none
    ```
    """
    folder = f"{RESULTS}/lm_eval/{_variant_of(variant)}"
    _run_snakemake(Path.cwd(), cores, configuration, folder)
    typer.echo(f"written  {folder}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A results folder.")],
    second: Annotated[Path, typer.Argument(help="Another results folder.")],
) -> None:
    """List the numbers of two runs that differ by more than their error.

    `results/compare.html` has all numbers.

    ```
    lamina compare results other/results
    ```
    """
    _run_module("lamina_workflow.report.compare", "--", str(first), str(second))


@app.command()
def leaderboard(
    runs: Annotated[
        list[Path], typer.Argument(help="The file lamina.duckdb of each run, or its folder.")
    ],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("leaderboard.html"),
) -> None:
    """Show the variants of several runs in one sortable page.

    To compare two runs of one study, use `lamina compare`, which tests the differences.

    ```
    lamina leaderboard results other/results
    ```
    """
    _run_module(
        "lamina_workflow.report.leaderboard", "--output", str(output), "--", *map(str, runs)
    )


@app.command()
def explain(
    file: Annotated[
        str,
        typer.Argument(help="A variant whose plan is explained, or a file under results/."),
    ],
) -> None:
    """Say why a plan removes its layers, and which job wrote a file: rule, options, inputs, code.

    The file itself holds this information.

    ```
    lamina explain A3b
    lamina explain results/tables/benchmarks.parquet
    ```
    """
    _run_module("lamina_workflow.commands.explain", file)


@app.command()
def query(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a question, such as which_model_to_take; without it, all are listed.",
            show_default=False,
        ),
    ] = None,
    wide: Annotated[bool, typer.Option(help="Print all columns.")] = False,
    csv: Annotated[bool, typer.Option(help="Print CSV, with all digits.")] = False,
) -> None:
    """Answer a question about the run in the current folder.

    Without a name, the questions are listed. A wrong name prints the nearest right one.

    ```
    lamina query which_model_to_take
    lamina query which_variants_there_are --csv > variants.csv
    ```
    """
    if name is None:
        from lamina_workflow.report.queries import list_questions

        typer.echo("\n".join(list_questions()))
        return
    options = [name for name, is_on in (("--wide", wide), ("--csv", csv)) if is_on]
    _run_module("lamina_workflow.report.shell", *options, name)


@app.command()
def sql() -> None:
    """Open DuckDB's shell on the results of the current folder.

    The shell is read-only, so a run may continue meanwhile. Queries can come from a file or a pipe.

    ```
    lamina sql
    echo "FROM variants" | lamina sql
    ```
    """
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


def _run_snakemake(
    folder: Path, cores: str, configuration: Path | None, *targets: str, advises: bool = False
) -> None:
    """Run Snakemake in a folder; ends the program with Snakemake's status if it fails.

    advises: Whether Snakemake advises on entries of the configuration that are of little use.
    """
    os.environ[advice.SWITCH] = "yes" if advises else "no"
    os.environ[failures.FOLDER] = "" if folder == Path.cwd() else str(folder)
    with chdir(folder):
        command = [*_snakemake_command(cores, configuration), "--logger", "lamina"]
        if targets:
            command += ["--", *targets]
        _run_command(command)


def _snakemake_command(cores: str, configuration: Path | None) -> list[str]:
    """Snakemake with the installed rules.

    Raises LaminaError if there is no configuration.
    """
    command = [*MODULE_COMMAND, "snakemake", "--snakefile", str(PROJECT / "workflow/Snakefile")]
    # Snakemake itself finds a profile only in the current folder or next to the Snakefile.
    command += ["--workflow-profile", str(PROJECT / "profiles/default")]
    # A run holds results/.lock; unlike Snakemake's own lock, a killed run does not leave it behind.
    command.append("--nolock")
    n_gpus = len(list_devices(os.environ))
    if n_gpus:
        command += ["--resources", f"gpu={n_gpus}"]
    command += ["--cores", cores]
    file = _find_configuration(configuration)
    if file != Path(DEFAULT_CONFIGURATIONS[0]):  # the Snakefile names this one itself
        command += ["--configfile", str(file)]
    return command


def _find_configuration(configuration: Path | None) -> Path:
    """The given configuration, else that of the current folder.

    Raises LaminaError if there is none.
    """
    file = configuration or _default_configuration()
    if file is not None and file.is_file():
        return file
    raise LaminaError(
        f"there is no file {file or DEFAULT_CONFIGURATIONS[0]}. Name a configuration, or begin with `lamina prune` or "
        "`lamina example`."
    )


def _default_configuration() -> Path | None:
    """The configuration of the current folder; None if there is none."""
    files = [Path(name) for name in DEFAULT_CONFIGURATIONS]
    return next((file for file in files if file.is_file()), None)


def _count_jobs(configuration: Path | None) -> int:
    """The number of jobs that a run would still do."""
    command = [*_snakemake_command("1", configuration), "--dry-run", "--quiet", "rules"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    totals = [line.split()[1] for line in printed.splitlines() if line.startswith("total ")]
    return int(totals[-1]) if totals else 0


def _run_module(module: str, *arguments: str) -> None:
    _run_command([*MODULE_COMMAND, module, *arguments])


def _run_command(command: list[str]) -> None:
    process = subprocess.Popen(command)
    # The terminal sends Ctrl-C to the process too, which ends its jobs and says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = process.wait()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if status != 0:
        raise SystemExit(status)


def _print_ending(folder: Path, configuration: Path | None) -> None:
    with chdir(folder):
        _run_module("lamina_workflow.report.ending", str(_find_configuration(configuration)))


def main() -> None:
    """Run the command line; errors that a user can correct end it with their message."""
    with report_errors():
        app()


if __name__ == "__main__":
    main()

"""What a large study's figures, report and queries cost: made-up tables, the same code and processes as in a run.

    python benchmarks/report.py [--layers 40 --tasks 20 --sweep-rows 5000000]
    python benchmarks/report.py --sweep-rows 50000000 --only queries

The study has ten variants a task, 200 of 20 tasks in all, and each is tested on every task: two selectors with one and
two layers removed, bare and patched, and one of the two healed as well (one plan of the last task is refused).

One JSON line a step: seconds, those of CPU and peak memory of its process, and one for comparisons, figures and report
together, as many at a time as a run has cores. `page` is the report in Chromium, where there is one, until loaded.
Bars: figures and report 60 s and 2 GB together, the page 3 s, a query 1 s.
"""

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path

import duckdb

from lamina.registry import declared_literals
from lamina_workflow.config.configuration import Report
from lamina_workflow.report import database, queries
from lamina_workflow.stages.job import Job
from lamina_workflow.stages.report import CompareMetrics, CompareSelectors, PlotFigure, RenderReport

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.given import chromium, scripts  # noqa: E402

VIEWS = queries.list_view_files()
# The five questions that are asked most.
QUERIES = (
    "which_layers_matter",
    "what_pruning_for_one_task_costs_the_others",
    "which_repair_when",
    "which_selector_wins",
    "which_model_to_take",
)


def study(folder: Path, layers: int, tasks: int, sweep_rows: int) -> list[Path]:
    """Tables of a made-up study, its sweeps repeated with other sample numbers until they have that many rows."""
    from tests.given.plausible_tables import write_study

    names = tuple(f"task{number}" for number in range(tasks))
    files = write_study(
        folder, layers, names, (1, 2), healed_size=2, n_test=500, selectors=("accuracy", "random")
    )
    sweeps, calibrations = (
        next(file for file in files if file.stem == name) for name in ("sweeps", "calibrations")
    )
    connection = duckdb.connect()
    few, samples = connection.execute(
        f"SELECT count(*), max(sample) + 1 FROM '{sweeps}'"
    ).fetchall()[0]
    turns = max(1, round(sweep_rows / few))
    every_turn = f"FROM '{sweeps}' AS s, range({turns}) AS t(turn)"
    _replace(
        connection, sweeps, f"SELECT s.* REPLACE (sample + {samples} * turn AS sample) {every_turn}"
    )
    _replace(
        connection,
        calibrations,
        f"SELECT * REPLACE ({turns * samples} AS n_samples) FROM '{calibrations}'",
    )
    return files


def _replace(connection: duckdb.DuckDBPyConnection, file: Path, query: str) -> None:
    new = file.with_suffix(".new")
    connection.execute(f"COPY ({query}) TO '{new}' (FORMAT parquet)")
    new.replace(file)


def script(step: str, job: Job) -> dict[str, object]:
    """Run a job of the workflow by its script, one thread to a process."""
    command, began = scripts.script_command(job), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=scripts.ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
    )
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, command
    cpu = round(used.ru_utime + used.ru_stime, 2)
    return told(step, began) | {"cpu_seconds": cpu, "peak_mb": round(used.ru_maxrss / 1024)}


def told(step: str, began: float) -> dict[str, object]:
    """A line of the output."""
    return {"step": step, "seconds": round(time.perf_counter() - began, 2)}


def pages(folder: Path, files: list[Path], workers: int) -> Iterator[dict[str, object]]:
    """Compare metrics and selectors, draw every figure, render the report, open it."""
    figures, page = folder / "figures", folder / "report.html"
    figures.mkdir()
    of = {file.stem: str(file) for file in files}
    began = time.perf_counter()
    swept = {table: of[table] for table in ("relevance", "sweeps", "calibrations")}
    tested = [of[table] for table in ("calibrations", "plans", "benchmarks", "benchmark_samples")]
    jobs: list[tuple[str, Job]] = [
        ("compare_metrics", CompareMetrics(**swept, output=of["agreements"])),
        (
            "compare_selectors",
            CompareSelectors(views=VIEWS, tables=tested, output=of["comparisons"]),
        ),
    ]
    after: list[
        tuple[str, Job]
    ] = []  # what is drawn of comparisons waits for them, and nothing else does
    asked = declared_literals("lamina_workflow.report.figures", "QUERIES")
    for name, read in sorted(declared_literals("lamina_workflow.report.figures", "TABLES").items()):
        written = {"output": str(figures / f"{name}.svg"), "data": str(figures / f"{name}.csv")}
        tables = [file for table, file in of.items() if table in read]
        plot = PlotFigure(
            figure=name,
            views=VIEWS,
            queries=[queries.locate_query(query) for query in asked[name]],
            tables=tables,
            **written,
        )
        job = (f"figure {name}", plot)
        (after if {"agreements", "comparisons"} & set(read) else jobs).append(job)
    for some in (jobs, after):
        with ThreadPool(workers) as pool:
            yield from pool.starmap(script, some, chunksize=1)
    facts = folder / "facts.json"
    facts.write_text(json.dumps({"seed": 0, "versions": {}, "commit": None}))
    job = RenderReport(
        report=Report(),
        names={},
        template="workflow/report/report.html.j2",
        views=VIEWS,
        facts=str(facts),
        tables=list(of.values()),
        figures=[
            str(figures / f"{name}.svg")
            for name in declared_literals("lamina_workflow.report.figures", "TABLES")
        ],
        output=str(page),
    )
    yield script("report", job)
    yield told("comparisons, figures and report", began) | {"workers": workers}
    if chromium.CHROMIUM:
        with chromium.open_page(folder / "profile") as browser:
            seconds = browser.open(page)
        yield {"step": "page", "seconds": round(seconds, 2), "bytes": page.stat().st_size}


def questions(files: list[Path]) -> Iterator[dict[str, object]]:
    """Ask each main query once, and again with what the first has read in the page cache."""
    connection = database.connect_views(files)
    for name in QUERIES:
        text = (ROOT / f"sql/queries/{name}.sql").read_text(encoding="utf-8")
        for turn in ("", " again"):
            began = time.perf_counter()
            rows = len(connection.execute(text).fetchall())
            yield told(f"query {name}{turn}", began) | {"rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--sweep-rows", type=int, default=5_000_000)
    parser.add_argument(
        "--workers", type=int, default=2, help="jobs at a time, as a run on as many cores"
    )
    parser.add_argument("--only", choices=("pages", "queries"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        # In a process of its own: a process is told to have used what the one that started it held.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            wanted = (Path(temporary) / "tables", args.layers, args.tasks, args.sweep_rows)
            tables = pool.apply(study, wanted)
        counts = {
            file.stem: duckdb.sql(f"SELECT count(*) FROM '{file}'").fetchall()[0][0]
            for file in tables
        }
        print(json.dumps({"rows": counts}), flush=True)
        for part, steps in (
            ("pages", lambda: pages(Path(temporary), tables, args.workers)),
            ("queries", lambda: questions(tables)),
        ):
            if args.only in (None, part):
                for line in steps():
                    print(json.dumps(line), flush=True)
        print(
            json.dumps(
                {"own_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}
            )
        )

"""Jobs of rules/report.smk: gathered tables, computed tables, the database, the page."""

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated, Any, Self

from lamina.options.entry import Options
from lamina.options.metrics import METRICS
from lamina.registry import declared_literals
from lamina.tables import TABLES
from lamina_workflow.config.configuration import Configuration, Report
from lamina_workflow.report.glossary import build_glossary
from lamina_workflow.stages.job import READ, WRITTEN, Job
from lamina_workflow.study import requests, tables
from lamina_workflow.study.handles import name_handles
from lamina_workflow.study.sweeps import list_maps, list_sweeps

# A computed table has rows if this source table has.
_SOURCE_TABLES = {
    "agreements": "relevance",
    "dissociations": "sweeps",
    "comparisons": "benchmarks",
    "jobs": "models",
}


class FromTables(Job):
    """A job on tables of a run, through views of them."""

    views: Annotated[list[str], READ] = []
    tables: Annotated[list[str], READ] = []


def list_figures(config: Configuration) -> dict[str, tuple[str, ...]]:
    """The figures that have something to show, each with the tables that it reads.

    Such a figure has data in all of its TABLES, one of the KINDS of diagnosis, and as many names of
    each section as its NEEDS require; `lamina_workflow.report.figures` explains these.
    """
    tables_by_figure = declared_literals("lamina_workflow.report.figures", "TABLES")
    kinds_by_figure = declared_literals("lamina_workflow.report.figures", "KINDS")
    needs_by_figure = declared_literals("lamina_workflow.report.figures", "NEEDS")
    diagnosis_kinds = {
        config.diagnoses[name].kind for _, _, name in requests.list_diagnoses(config)
    }
    counts = _count_names(config)

    figures = {}
    for figure, figure_tables in tables_by_figure.items():
        kinds = kinds_by_figure.get(figure)
        has_kind = kinds is None or bool(diagnosis_kinds.intersection(kinds))
        needs = needs_by_figure.get(figure, {})
        has_names = all(counts[section] >= least for section, least in needs.items())
        if has_kind and has_names and _have_data(config, figure_tables):
            figures[figure] = figure_tables
    return figures


def _count_names(config: Configuration) -> dict[str, int]:
    """How many names of each section the studies use; `repairs` counts pairs of repair and healing.

    `steps` are sweeps of already pruned models, which selectors measure on their way.
    `checkpoints` is the largest number of models of one training in studies of maps. `loads` are
    pairs of a prompt and a batch with which variants are timed, `passes` healings that keep the
    weights of one pass over their data, `moving_selectors` those that may run layers again.
    """
    variants = requests.list_variants(config)
    selectors = {variant.selector for variant in variants} - {"none"}
    repairs = {(variant.repair, variant.healing) for variant in variants}
    healings = {variant.healing for variant in variants} - {"none"}
    efficiency = config.benchmarks.efficiency
    mapped_models = {model for model, *_ in list_maps(config)}
    checkpoints = Counter(config.models[model].series for model in mapped_models)
    del checkpoints[None]
    return {
        "calibrations": len(set(requests.list_calibrations(config))),
        "selectors": len({variant.selector for variant in variants}),
        "moving_selectors": sum(config.selectors[name].MOVES for name in selectors),
        "tasks": len(config.benchmarks.tasks),
        "texts": len(config.benchmarks.perplexity),
        "repairs": len(repairs - {("none", "none")}),
        "passes": sum(config.healings[healing].keep != "best" for healing in healings),
        "loads": len(efficiency.loads) if efficiency else 0,
        "checkpoints": max(checkpoints.values(), default=0),
        "steps": sum(removed > 0 for _, _, _, removed in list_sweeps(config)),
    }


def _have_data(config: Configuration, table_names: Collection[str]) -> bool:
    """Whether the studies produce files from which each of these tables is gathered."""
    sources = [_SOURCE_TABLES.get(table, table) for table in table_names]
    return all(tables.files_of_table(config, source) for source in sources)


class GatherTable(Job):
    """One table, gathered from its `parts`, the files of the jobs that measured it."""

    table: str
    groups: dict[str, str] = {}  # labels of entries that are replicates, by name
    scores: dict[str, str] = {}  # how calibrations compare choices, if not by acc_norm
    repairs: dict[str, str] = {}  # repairs in the loops of selectors, by selector
    handles: dict[str, str] = {}  # short names of variants
    gates: list[dict[str, Any]] = []  # rows of table `gates`
    parts: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        entries: dict[str, Any] = {}
        scores: dict[str, str] = {}
        repairs: dict[str, str] = {}
        if w.table == "plans":
            entries = config.selectors
            repairs = {name: entry.repair for name, entry in entries.items() if entry.repair}
        if w.table == "calibrations":
            entries = config.calibrations
            scores = {
                name: str(entry.score)
                for name, entry in config.calibrations.items()
                if entry.score != "acc_norm"
            }
        groups = {name: entry.group for name, entry in entries.items() if entry.group}
        handles = name_handles(config) if w.table == "handles" else {}
        gates: list[dict[str, Any]] = []
        if w.table == "gates":
            for variant, gate in requests.list_gates(config):
                gates.append({**asdict(variant), **gate.model_dump()})
        return cls(
            table=w.table,
            groups=groups,
            scores=scores,
            repairs=repairs,
            handles=handles,
            gates=gates,
        )

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.table,)


class GatherJobs(Job):
    """The table of jobs, from Snakemake's records in results/jobs."""

    WRITES = ("jobs",)


class CompareTasks(Job):
    """How tasks differ in the units that they need, from sweeps of base models."""

    WRITES = ("dissociations",)

    sweeps: Annotated[str, READ] = ""
    calibrations: Annotated[str, READ] = ""


class CompareMetrics(Job):
    """How well metrics agree, for every metric that has scores."""

    WRITES = ("agreements",)

    relevance: Annotated[str, READ] = ""
    sweeps: Annotated[str, READ] = ""
    calibrations: Annotated[str, READ] = ""

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted({metric.module for metric in METRICS.values()}))


class CompareSelectors(FromTables):
    """Which selector is better, document by document."""

    WRITES = ("comparisons",)


class BuildDatabase(FromTables):
    """All tables, kept under the name of the `study`."""

    WRITES = tuple(TABLES)

    study: str


class PlotFigure(FromTables):
    """One figure from the tables that it declares. Others may just be being written."""

    figure: str
    queries: Annotated[list[str], READ] = []
    data: Annotated[str, WRITTEN] = ""

    @property
    def modules(self) -> tuple[str, ...]:
        # Metrics whose scores the figure computes itself.
        metrics = declared_literals("lamina_workflow.report.figures", "METRICS").get(
            self.figure, ()
        )
        metric_modules = sorted({METRICS[metric].module for metric in metrics})
        return (f"lamina_workflow.report.figures.{self.figure}", *metric_modules)


class CollectFacts(Job):
    """Versions, commit, wall time and machine of the run."""

    FOLLOWED = ("lamina.version",)

    seed: int
    files: str  # configuration files of the run
    started: str  # a file that was touched when the run began

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(seed=config.seed, files=w.files, started=w.started)


class RenderReport(FromTables):
    """The page of the whole run."""

    report: Options[Report]  # what a variant must keep to be recommended
    names: dict[str, Any]  # the meanings of names in the report, by section
    sizes: list[str] = []  # the requested sizes, and how many layers each is
    template: Annotated[str, READ] = ""
    included: Annotated[list[str], READ] = []
    queries: Annotated[list[str], READ] = []
    facts: Annotated[str, READ] = ""
    database: Annotated[str, READ] = ""
    figures: Annotated[list[str], READ] = []
    numbers: Annotated[list[str], READ] = []
    judged: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(
            report=config.report,
            names=build_glossary(config),
            sizes=requests.describe_sizes(config),
        )


class CheckRefusals(Job):
    """Which plans and repairs were refused; the last job of a run."""

    plans: Annotated[str, READ] = ""
    patches: Annotated[str, READ] = ""

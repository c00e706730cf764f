"""Jobs of rules/report.smk: tables of a run, what they say of metrics, tasks and selectors, the database, the page."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration, Report
from lamina.config.entry import Options
from lamina.config.metrics import METRICS
from lamina.registry import declared
from lamina.report.glossary import glossary
from lamina.stages.job import READ, WRITTEN, Job
from lamina.study import requests, tables
from lamina.tables import TABLES


class FromTables(Job):
    """A job on tables of a run, through views of them."""

    views: Annotated[list[str], READ] = []
    tables: Annotated[list[str], READ] = []


# What tables that are computed from others need.
_COMPUTED = {
    "agreements": "relevance",
    "dissociations": "sweeps",
    "comparisons": "benchmarks",
    "jobs": "models",
}


def figures(config: Configuration) -> dict[str, tuple[str, ...]]:
    """The tables that each figure reads, of the figures that have something to show: the studies ask for all of these
    tables, for the kinds of diagnosis in a figure's KINDS, and for as many names as its NEEDS say.
    """
    kinds, needs = (declared("lamina.report.figures", name) for name in ("KINDS", "NEEDS"))
    asked = {config.diagnoses[name].kind for _, _, name in requests.diagnoses(config)}
    held = requests.variants(config)
    counts = {
        "calibrations": len(set(requests.calibrations(config))),
        "selectors": len({each.selector for each in held}),
        "tasks": len(config.benchmarks.tasks),
        "texts": len(config.benchmarks.perplexity),
        "repairs": len({(each.repair, each.healing) for each in held} - {("none", "none")}),
    }
    return {
        name: read
        for name, read in declared("lamina.report.figures", "TABLES").items()
        if all(tables.parts(config, _COMPUTED.get(table, table)) for table in read)
        and (name not in kinds or asked.intersection(kinds[name]))
        and all(counts[key] >= least for key, least in needs.get(name, {}).items())
    }


class GatherTable(Job):
    """One table from its `parts`. `groups` has the labels of entries that are replicates, `scores` the score of
    calibrations that do not compare choices by acc_norm.
    """

    table: str
    groups: dict[str, str] = {}
    scores: dict[str, str] = {}
    parts: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        sections: dict[str, dict[str, Any]] = {
            "calibrations": config.calibrations,
            "plans": config.selectors,
        }
        groups = {
            name: entry.group for name, entry in sections.get(w.table, {}).items() if entry.group
        }
        entries = config.calibrations if w.table == "calibrations" else {}
        scores = {
            name: str(entry.score) for name, entry in entries.items() if entry.score != "acc_norm"
        }
        return cls(table=w.table, groups=groups, scores=scores)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.table,)


class GatherJobs(Job):
    """The table of jobs, from Snakemake's records in results/jobs."""

    WRITES = ("jobs",)


class CompareTasks(Job):
    """How tasks differ in the units that they need, from sweeps of unpruned models."""

    WRITES = ("dissociations",)

    sweeps: Annotated[str, READ] = ""
    calibrations: Annotated[str, READ] = ""


class CompareMetrics(Job):
    """How metrics agree, for every metric that has scores."""

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
    """One figure from the tables that it declares. It opens no other: another job may be writing that one anew."""

    figure: str
    queries: Annotated[list[str], READ] = []
    data: Annotated[str, WRITTEN] = ""

    @property
    def modules(self) -> tuple[str, ...]:
        # Scores that the figure computes anew.
        scored = declared("lamina.report.figures", "METRICS").get(self.figure, ())
        return (
            f"lamina.report.figures.{self.figure}",
            *sorted({METRICS[metric].module for metric in scored}),
        )


class CollectFacts(Job):
    """`files` are the configuration files of the run; `started` is a file that was touched when the run began."""

    FOLLOWED = ("lamina.version",)

    seed: int
    files: str
    started: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(seed=config.seed, files=w.files, started=w.started)


class RenderReport(FromTables):
    """The whole run. `report` says what a variant must keep to be recommended; `names` explains the names in it, and
    `sizes` says what sizes were asked for and what they come to.
    """

    report: Options[Report]
    names: dict[str, Any]
    sizes: list[str] = []
    template: Annotated[str, READ] = ""
    included: Annotated[list[str], READ] = []
    queries: Annotated[list[str], READ] = []
    facts: Annotated[str, READ] = ""
    database: Annotated[str, READ] = ""
    figures: Annotated[list[str], READ] = []
    numbers: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        return cls(report=config.report, names=glossary(config), sizes=requests.outcomes(config))


class CheckRefusals(Job):
    """The last job of a run: all else is done by then."""

    plans: Annotated[str, READ] = ""
    patches: Annotated[str, READ] = ""

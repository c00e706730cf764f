"""Adding to lamina touches one module and reruns what a reader of docs/extending.md expects.

Each test writes a made-up thing into a copy of the finished study and asks dry runs, or runs it.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.pipeline.project import (
    Project,
    copy_project,
    parse_jobs,
    rules_of,
    wildcard_values,
)
from tests.pipeline.test_stale import GATHERING, REPORTING

pytestmark = pytest.mark.slow

FIGURE_FILE = "src/lamina_workflow/report/figures/made_up.py"
FIGURE = '''"""A made-up figure."""

from matplotlib.figure import Figure

from lamina_workflow.report.figures import style

TITLE = "Made up"
POSITION = 99
TABLES = ("activations", "models")
QUERIES = ("which_runs_barely_turn_the_stream",)


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """Nothing."""
    return style.draw_empty("made up")


def write_caption(rows: style.Rows) -> str:
    """What it shows."""
    return "Nothing."
'''

METRIC_FILE = "src/lamina/relevance/metrics/made_up.py"
METRIC = '''"""A made-up metric."""

from lamina.relevance.metrics.answers import Perplexity
from lamina.relevance.protocol import Metric


class MadeUp(Metric):
    """What perplexity is."""

    name = "made_up"
    pass_ = "removal"
    columns = ("nll", "n_tokens")
    help = "nothing"
    terms = Perplexity.terms
'''


def write_file(project: Project, file: str, text: str) -> None:
    (project.folder / file).write_text(text)


def write_twin(project: Project, module: str) -> None:
    """A module `made_up` that does what a module beside it does."""
    path = project.folder / f"src/lamina/{module}.py"
    declared_name = f'Literal["{path.stem}"] = "{path.stem}"'
    text = path.read_text()
    assert declared_name in text
    twin_text = text.replace(declared_name, 'Literal["made_up"] = "made_up"')
    path.with_name("made_up.py").write_text(twin_text)


def test_a_metric_of_a_measured_column_reruns_scores_and_the_report(restored: Project) -> None:
    write_file(restored, METRIC_FILE, METRIC)

    stale_jobs = restored.stale()

    not_concerned = {"compare_tasks", "compare_selectors"}
    assert rules_of(stale_jobs) == GATHERING - not_concerned | {"score_relevance"}
    assert wildcard_values(stale_jobs, "gather_table", "table") == {"relevance"}
    for selector in wildcard_values(stale_jobs, "score_relevance", "selector"):
        assert not selector.startswith("base/stream")


MEASURING = {"sweep_units", "capture_activations", "score_relevance", "heal_variant"}


@dataclass(frozen=True)
class NewEntry:
    """An entry `new` of the configuration, what a study lists then, and what runs for it.

    module: a module whose twin the entry names; empty where the method is one of lamina's.
    run, not_run: rules of which a job runs for `new`, and rules of which none runs.
    """

    section: str
    options: dict[str, Any]
    study: str
    listed: list[str]
    wildcard: str
    run: list[str]
    not_run: set[str] = field(default_factory=set)
    module: str = ""


NEW_ENTRIES = {
    "new repair": NewEntry(
        module="repairs/methods/ghost",
        section="repairs",
        options={"method": "made_up"},
        study="prune",
        listed=["none", "ghost", "new"],
        wildcard="repair",
        run=["fit_patch"],
        not_run=MEASURING | {"prune_step"},
    ),
    "known repair": NewEntry(
        section="repairs",
        options={"method": "linearpatch"},
        study="prune",
        listed=["none", "ghost", "new"],
        wildcard="repair",
        run=["fit_patch"],
        not_run=MEASURING | {"prune_step"},
    ),
    "new strategy": NewEntry(
        module="selection/strategies/deepest",
        section="selectors",
        options={"strategy": "made_up"},
        study="prune",
        listed=["accuracy", "cosine", "new"],
        wildcard="selector",
        run=["prune_step", "fit_patch"],
        not_run=MEASURING,
    ),
    "new diagnosis": NewEntry(
        module="diagnosis/variance",
        section="diagnoses",
        options={"kind": "made_up"},
        study="maps",
        listed=["new"],
        wildcard="diagnosis",
        run=["diagnose_layers"],
        not_run=MEASURING | {"prune_step", "fit_patch", "benchmark_task"},
    ),
}


@pytest.mark.parametrize("name", NEW_ENTRIES)
def test_a_method_reruns_nothing_until_a_study_lists_it(restored: Project, name: str) -> None:
    entry = NEW_ENTRIES[name]
    if entry.module:
        write_twin(restored, entry.module)
        assert restored.stale() == []
    restored.configure({entry.section: {"new": entry.options}})
    restored.configure({"studies": {entry.study: {entry.section: entry.listed}}})

    stale_jobs = restored.stale()

    for rule in entry.run:
        assert wildcard_values(stale_jobs, rule, entry.wildcard) == {"new"}
    assert not rules_of(stale_jobs) & entry.not_run


def test_a_figure_is_drawn_and_nothing_else(restored: Project) -> None:
    write_file(restored, FIGURE_FILE, FIGURE)

    stale_jobs = restored.stale()

    assert rules_of(stale_jobs) <= REPORTING | {"plot_figure", "build_database"}
    assert wildcard_values(stale_jobs, "plot_figure", "figure") == {"made_up"}


@pytest.mark.parametrize(
    ("module", "option_before"),
    [
        ("repairs", '    method: str = option("The repair method.")\n'),
        ("healings", '    learning_rate: float = option("Peak learning rate.", 0.0003, gt=0)\n'),
        (
            "selectors",
            '    strategy: str = option("How units are chosen from their scores.", "iterative")\n',
        ),
        ("calibrations", "    split: Split = _SPLIT\n"),
    ],
)
def test_an_option_with_a_default_reruns_nothing(
    restored: Project, module: str, option_before: str
) -> None:
    new_option = '    made_up: int = option("Made up.", 3)\n'
    restored.edit(f"src/lamina/options/{module}.py", option_before, option_before + new_option)
    assert restored.stale() == []


def test_a_metric_and_a_figure_are_in_the_next_report(moved: Project) -> None:
    scores = "SELECT selector, removed, unit, score FROM relevance WHERE metric = '{}' ORDER BY ALL"
    with moved.restored():
        write_file(moved, METRIC_FILE, METRIC)
        write_file(moved, FIGURE_FILE, FIGURE)
        moved.run()

        made_up_scores = moved.query(scores.format("made_up"))
        assert made_up_scores
        assert made_up_scores == moved.query(scores.format("perplexity"))
        assert (moved.folder / "results/figures/made_up.svg").is_file()
        assert "Made up" in (moved.folder / "results/report.html").read_text()
    moved.run()  # without them again, for the tests after this one


STRATEGY = '''"""The first units: a search with nothing but what docs/extending.md asks for."""

from typing import Literal

from lamina.engine.candidates import Candidate
from lamina.options.metrics import MetricName
from lamina.options.selectors import Selector, metric_option


class MadeUp(Selector):
    """Removes the first units."""

    SEARCHES = True

    strategy: Literal["made_up"] = "made_up"
    metric: MetricName = metric_option()


def find(search, units, sizes, options):
    """Sets of the first units."""
    return {size: Candidate(frozenset(units[:size])) for size in sizes}
'''

HEALING = '''"""No training: a healing with nothing but what docs/extending.md asks for."""

from typing import Literal

from lamina.healing.full import save
from lamina.options.healings import Healing

__all__ = ["save"]


class MadeUp(Healing):
    """Trains nothing."""

    method: Literal["made_up"] = "made_up"


def heal(base, plan, patches, sources, options, progress=None):
    """The weights as they are."""
    from lamina.models.materialise import materialise

    return dict(materialise(base, plan, patches).named_parameters()), []
'''


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study with a searching strategy and a healing that have only what is documented."""
    project = copy_project(tmp_path_factory.mktemp("extended"), "tests/configs/tiny.yaml")
    write_file(project, "src/lamina/selection/strategies/made_up.py", STRATEGY)
    write_file(project, "src/lamina/healing/made_up.py", HEALING)
    project.configure(
        {
            "selectors": {"new": {"strategy": "made_up", "metric": "accuracy"}},
            "healings": {"new": {"method": "made_up"}},
            "studies": {
                "heal": {
                    "calibrations": ["recall"],
                    "selectors": ["new"],
                    "healings": ["none", "new"],
                }
            },
        }
    )
    return project


def test_a_run_needs_no_forecast_of_its_cost(extended: Project) -> None:
    """Which would ask a method for more than is documented."""
    planned_jobs = parse_jobs(extended.run("-n", "all").stdout)
    assert "estimate_cost" not in rules_of(planned_jobs)


def test_a_search_and_a_healing_need_nothing_that_is_not_documented(extended: Project) -> None:
    variant = "reference/recall/new/removed=2"
    extended.run(f"results/adapters/{variant}/ghost/new/training.parquet")
    plan = json.loads((extended.folder / f"results/plans/{variant}.json").read_text())
    assert plan["units"] == ["0", "1"]

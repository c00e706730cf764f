"""Adding to lamina touches one module and one class, and reruns what a reader of docs/extending.md expects.

Each test writes a made-up thing into a copy of the finished study and asks dry runs, or runs it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.project import Project, copy_project, parse_jobs
from tests.pipeline.test_stale import GATHERING, REPORTING, of, rules

pytestmark = pytest.mark.slow

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


METRIC = '''"""A metric that there was not."""

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


def add_twin(project: Project, package: str, of_module: str) -> None:
    """A module `made_up` that does what another does."""
    folder = project.folder / "src/lamina" / package
    text = (folder / f"{of_module}.py").read_text()
    (folder / "made_up.py").write_text(
        text.replace(f'Literal["{of_module}"] = "{of_module}"', 'Literal["made_up"] = "made_up"')
    )


def add_metric(project: Project) -> None:
    """A metric `made_up` that scores as perplexity does."""
    (project.folder / "src/lamina/relevance/metrics/made_up.py").write_text(METRIC)


def test_a_metric_of_a_measured_column_reruns_scores_and_the_report(restored: Project) -> None:
    add_metric(restored)
    jobs = restored.stale()
    assert rules(jobs) == GATHERING - {"compare_tasks", "compare_selectors"} | {"score_relevance"}
    assert of(jobs, "gather_table", "table") == {"relevance"}
    assert not {s for s in of(jobs, "score_relevance", "selector") if s.startswith("base/stream")}


LATE = {"sweep_units", "capture_activations", "prune_step", "score_relevance", "heal_variant"}
# A package and a module of it that gets a twin, the twin's entry, what a study lists, what runs for it, or not.
LISTED = [
    (
        "repair/methods",
        "ghost",
        "repairs",
        {"method": "made_up"},
        ["none", "ghost", "new"],
        "fit_patch",
        LATE,
    ),
    (
        "repair/methods",
        "",
        "repairs",
        {"method": "linearpatch"},
        ["none", "ghost", "new"],
        "fit_patch",
        LATE,
    ),
    *[
        (
            "selection/strategies",
            "deepest",
            "selectors",
            {"strategy": "made_up"},
            ["accuracy", "cosine", "new"],
        )
        + (rule, LATE - {"prune_step"})
        for rule in ("prune_step", "fit_patch")
    ],
    ("diagnosis", "variance", "diagnoses", {"kind": "made_up"}, ["new"])
    + ("diagnose_layers", LATE | {"fit_patch", "benchmark_task"}),
]


@pytest.mark.parametrize("case", LISTED)
def test_a_method_reruns_nothing_until_a_study_lists_it(
    restored: Project, case: tuple[Any, ...]
) -> None:
    package, twin, section, entry, listed, rule, spared = case
    if twin:
        add_twin(restored, package, twin)
        assert restored.stale() == []
    study = "maps" if section == "diagnoses" else "prune"
    restored.configure({section: {"new": entry}, "studies": {study: {section: listed}}})
    jobs = restored.stale()
    wildcard = {"repairs": "repair", "selectors": "selector", "diagnoses": "diagnosis"}[section]
    assert of(jobs, rule, wildcard) == {"new"} and not rules(jobs) & spared


def test_a_figure_is_drawn_and_nothing_else(restored: Project) -> None:
    restored.add("src/lamina_workflow/report/figures/made_up.py", FIGURE)
    jobs = restored.stale()
    assert rules(jobs) <= REPORTING | {"plot_figure", "build_database"}
    assert of(jobs, "plot_figure", "figure") == {"made_up"}


@pytest.mark.parametrize(
    ("section", "anchor"),
    [
        ("repairs", '    method: str = option("The repair method.")\n'),
        ("healings", '    learning_rate: float = option("Peak learning rate.", 0.0003, gt=0)\n'),
        (
            "selectors",
            '    strategy: str = option("How units are picked from their scores.", "iterative")\n',
        ),
        ("calibrations", "    split: Split = _SPLIT\n"),
    ],
)
def test_an_option_with_a_default_reruns_nothing(
    restored: Project, section: str, anchor: str
) -> None:
    line = '    made_up: int = option("Made up.", 3)\n'
    restored.edit(f"src/lamina_workflow/config/{section}.py", anchor, anchor + line)
    assert restored.stale() == []


def test_a_metric_and_a_figure_are_in_the_next_report(moved: Project) -> None:
    with moved.restored():
        add_metric(moved)
        moved.add("src/lamina_workflow/report/figures/made_up.py", FIGURE)
        moved.run()
        made, known = (
            moved.query(
                f"SELECT selector, removed, unit, score FROM relevance WHERE metric = '{metric}' ORDER BY ALL"
            )
            for metric in ("made_up", "perplexity")
        )
        assert made and made == known
        assert (moved.folder / "results/figures/made_up.svg").is_file()
        assert "Made up" in Path(moved.folder / "results/report.html").read_text()
    moved.run()


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


def test_a_search_and_a_healing_need_nothing_that_is_not_documented(tmp_path: Path) -> None:
    """A run of them needs no forecast of what they cost, which would ask for more."""
    project = copy_project(tmp_path, "tests/configs/tiny.yaml")
    project.add("src/lamina/selection/strategies/made_up.py", STRATEGY)
    project.add("src/lamina/healing/made_up.py", HEALING)
    study = {"calibrations": ["recall"], "selectors": ["new"], "healings": ["none", "new"]}
    project.configure(
        {
            "selectors": {"new": {"strategy": "made_up", "metric": "accuracy"}},
            "healings": {"new": {"method": "made_up"}},
            "studies": {"heal": study},
        }
    )
    assert "estimate_cost" not in rules(parse_jobs(project.run("-n", "all").stdout))
    variant = "reference/recall/new/removed=2"
    project.run(f"results/adapters/{variant}/ghost/new/training.parquet")
    plan = project.folder / f"results/plans/{variant}.json"
    assert json.loads(plan.read_text())["units"] == ["0", "1"]

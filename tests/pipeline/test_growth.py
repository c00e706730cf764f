"""Adding to lamina touches one module and one class, and reruns what a reader of docs/extending.md expects.

Each test writes a made-up thing into a copy of the finished study and asks dry runs, or runs it.
"""

from pathlib import Path

import pytest

from tests.pipeline.project import Project
from tests.pipeline.test_stale import GATHERING, REPORTING, of, rules

pytestmark = pytest.mark.slow

FIGURE = '''"""A made-up figure."""

from matplotlib.figure import Figure

from lamina.report.figures import style

TITLE = "Made up"
PLACE = 99
TABLES = ("activations", "models")
ABOUT = "Nothing."
QUERIES = ("which_runs_barely_turn_the_stream",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Nothing."""
    return style.empty("made up")


def caption(data: style.Rows) -> str:
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


def test_a_repair_reruns_nothing_until_a_study_lists_it(restored: Project) -> None:
    add_twin(restored, "repair/methods", "ghost")
    assert restored.stale() == []
    change = {"repairs": {"new": {"method": "made_up"}}, "studies": {"prune": {"repairs": ["none", "ghost", "new"]}}}
    restored.configure(change)
    jobs = restored.stale()
    assert of(jobs, "fit_patch", "repair") == {"new"}
    assert not rules(jobs) & {"sweep_units", "capture_activations", "prune_step", "score_relevance", "heal_variant"}


def test_another_repair_reruns_no_other_fit(restored: Project) -> None:
    change = {
        "repairs": {"new": {"method": "linearpatch"}},
        "studies": {"prune": {"repairs": ["none", "ghost", "new"]}},
    }
    restored.configure(change)
    jobs = restored.stale()
    assert of(jobs, "fit_patch", "repair") == {"new"}
    assert not rules(jobs) & {"sweep_units", "prune_step", "heal_variant"}


def test_a_strategy_reruns_nothing_until_a_study_lists_it(restored: Project) -> None:
    add_twin(restored, "selection/strategies", "deepest")
    assert restored.stale() == []
    change = {
        "selectors": {"new": {"strategy": "made_up"}},
        "studies": {"prune": {"selectors": ["accuracy", "cosine", "new"]}},
    }
    restored.configure(change)
    jobs = restored.stale()
    assert of(jobs, "prune_step", "selector") == of(jobs, "fit_patch", "selector") == {"new"}
    assert not rules(jobs) & {"sweep_units", "capture_activations", "score_relevance", "heal_variant"}


def test_a_diagnosis_reruns_nothing_until_a_study_lists_it(restored: Project) -> None:
    add_twin(restored, "diagnosis", "variance")
    assert restored.stale() == []
    change = {"diagnoses": {"new": {"kind": "made_up"}}, "studies": {"maps": {"diagnoses": ["new"]}}}
    restored.configure(change)
    jobs = restored.stale()
    assert rules(jobs) - GATHERING == {"diagnose_layers"}
    assert of(jobs, "diagnose_layers", "diagnosis") == {"new"}


def test_a_figure_is_drawn_and_nothing_else(restored: Project) -> None:
    restored.add("src/lamina/report/figures/made_up.py", FIGURE)
    jobs = restored.stale()
    assert rules(jobs) <= REPORTING | {"plot_figure", "build_database"}
    assert of(jobs, "plot_figure", "figure") == {"made_up"}


@pytest.mark.parametrize(
    ("section", "anchor"),
    [
        ("repairs", '    method: str = option("The repair method.")\n'),
        ("healings", '    learning_rate: float = option("Peak learning rate.", 0.0003, gt=0)\n'),
        ("selectors", '    strategy: str = option("How units are picked from their scores.", "iterative")\n'),
        ("calibrations", "    split: Split = _SPLIT\n"),
    ],
)
def test_an_option_with_a_default_reruns_nothing(restored: Project, section: str, anchor: str) -> None:
    line = '    made_up: int = option("Made up.", 3)\n'
    restored.edit(f"src/lamina/config/{section}.py", anchor, anchor + line)
    assert restored.stale() == []


def test_a_metric_and_a_figure_are_in_the_next_report(moved: Project) -> None:
    with moved.restored():
        add_metric(moved)
        moved.add("src/lamina/report/figures/made_up.py", FIGURE)
        moved.run()
        made, known = (
            moved.query(f"SELECT selector, removed, unit, score FROM relevance WHERE metric = '{metric}' ORDER BY ALL")
            for metric in ("made_up", "perplexity")
        )
        assert made and made == known
        assert (moved.folder / "results/figures/made_up.svg").is_file()
        assert "Made up" in Path(moved.folder / "results/report.html").read_text()
    moved.run()

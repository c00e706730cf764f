"""Every figure and the report, on made-up studies of several sizes and on a run that has measured nothing."""

import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lamina import database, report
from lamina.figures import relevance_agreement, style
from tests.unit.plausible_tables import write_study

ROOT = Path(__file__).parents[2]
VIEWS = ROOT / "sql" / "views.sql"
QUERIES = ROOT / "sql" / "queries"
TEMPLATE = ROOT / "workflow" / "report" / "report.html.j2"
FIGURES = list(report.FIGURES)
SIZES = {
    "small": dict(n_layers=4, calibrations=("recall",), sizes=(1,), healed=1, n_test=40),
    "two models": dict(
        n_layers=6, calibrations=("recall", "facts"), sizes=(1, 2), healed=2, n_test=40, models=("a", "b")
    ),
}


@pytest.fixture(scope="module", params=SIZES)
def study(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    write_study(folder, **SIZES[request.param])
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_study(folder, **SIZES["small"])
    return folder


@functools.cache
def draw(name: str, folder: Path) -> str:
    module = importlib.import_module(f"lamina.figures.{name}")
    return style.svg(module.draw(database.connect(VIEWS, folder)), salt=name)


def caption(name: str, folder: Path) -> str:
    return importlib.import_module(f"lamina.figures.{name}").caption(database.connect(VIEWS, folder))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_bytes_for_the_same_tables(name, small):
    first = draw(name, small)
    assert first == draw.__wrapped__(name, small)
    assert "<dc:date>" not in first


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_gives_sample_counts(name, study):
    if name == "cross_task" and not database.rows(
        database.connect(VIEWS, study), "FROM scores WHERE NOT own AND removed > 0 AND higher_is_better"
    ):
        pytest.skip("no plan was tested on another task")
    assert re.search(r"n = \d", caption(name, study))


@pytest.mark.parametrize("name", FIGURES)
def test_a_run_without_data_gives_an_image_that_says_so(name, tmp_path):
    module = importlib.import_module(f"lamina.figures.{name}")
    figure = module.draw(database.connect(VIEWS, tmp_path))
    assert figure.texts[0].get_text().startswith("Nothing to show because")
    assert caption(name, tmp_path) == ""


def test_every_figure_module_is_in_the_report():
    modules = {path.stem for path in (ROOT / "src" / "lamina" / "figures").glob("[a-z]*.py")} - {"style"}
    assert modules == set(FIGURES)
    captions = set(re.findall(r'figure == "(\w+)"', (ROOT / "workflow" / "report" / "figure.rst").read_text()))
    assert captions == set(FIGURES)


def rendered(folder: Path, drawn: tuple[str, ...] = ()) -> str:
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    for name in drawn:
        (figures / f"{name}.svg").write_text(draw(name, folder), encoding="utf-8")
    facts = {"seed": 0, "versions": {"python": "3.11"}, "commit": None}
    return report.render(database.connect(VIEWS, folder), QUERIES, figures, TEMPLATE, facts)


def test_the_report_is_one_file_that_needs_nothing_else(study):
    page = rendered(study, drawn=tuple(FIGURES))
    assert "http" not in page
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert targets <= set(ids)
    assert page.count("<svg") == len(FIGURES)
    assert "versions · python" in page


def test_the_report_puts_refused_plans_and_their_remedy_in_sight(tmp_path):
    write_study(tmp_path, n_layers=4, calibrations=("recall", "facts", "hops", "sorting"), sizes=(1,), n_test=20)
    page = rendered(tmp_path)
    assert page.index('id="refused"') < page.index('id="summary"')
    assert "Give it more samples, or leave it out of the study" in page


def test_the_report_of_a_run_without_data_says_so(tmp_path):
    page = rendered(tmp_path)
    assert "measured nothing that can be summed up" in page
    assert "Refused plans" not in page


def test_names_from_the_configuration_cannot_break_the_page(tmp_path):
    write_study(tmp_path, n_layers=4, calibrations=("<b>&",), sizes=(1,), healed=1, n_test=20)
    page = rendered(tmp_path, drawn=("relevance_maps",))
    assert "<b>&<" not in page and "&lt;b&gt;&amp;" in page


def test_spearman_agrees_with_scipy():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, 30), rng.normal(size=30)
    assert relevance_agreement.spearman(first, second) == pytest.approx(spearmanr(first, second).statistic)


def test_an_interval_that_covers_every_score_reaches_every_rank():
    data = [dict(accuracy=score, accuracy_low=score, accuracy_high=score) for score in (0.1, 0.2, 0.3)]
    data[1] |= dict(accuracy_low=0.0, accuracy_high=1.0)
    ranks, below, above = relevance_agreement.ranks_with_reach(data, "accuracy")
    assert ranks.tolist() == [1, 2, 3]
    assert (below.tolist(), above.tolist()) == ([0, 1, 0], [0, 1, 0])


@pytest.mark.parametrize("script", ["plot_figure", "render_report", "build_database", "gather_table"])
def test_report_scripts_start_without_torch(script):
    code = (
        f"import sys, runpy; sys.argv = ['{script}.py', '--help']\n"
        f"try: runpy.run_path('workflow/scripts/{script}.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True)

"""Every figure and the report, on made-up studies of several sizes and on a run that has measured nothing."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest
import yaml

from lamina.checks.load import load
from lamina.relevance.statistics import Z95
from lamina.report import answers, database, explorer, summary
from lamina.report import page as report
from lamina.report.figures import style
from lamina.report.figures.drawing import Drawing, draw_figure
from lamina.stages.report import figures as figures_of
from tests import ROOT
from tests.given.figures import FIGURES
from tests.given.plausible_tables import VIEWS, write_study, write_tables
from tests.given.slow import slow_but

TEMPLATE = ROOT / "workflow" / "report" / "report.html.j2"


@pytest.fixture(scope="module")
def studies(tmp_path_factory, two_models) -> dict[str, Path]:
    """Folders of tables, written once, so that what is drawn of them is drawn once."""
    small = tmp_path_factory.mktemp("study")
    write_study(small, n_layers=4, calibrations=("recall",), sizes=(1,), healed=1, n_test=40)
    return {"small": small, "two models": two_models}


@pytest.fixture(params=["small", "two models"])
def study(request, studies) -> Path:
    return studies[request.param]


@pytest.fixture
def small(studies) -> Path:
    return studies["small"]


def opened(name: str, folder: Path) -> duckdb.DuckDBPyConnection:
    """What the job of a figure opens: its tables and no other."""
    return database.connect(VIEWS, [folder / f"{table}.parquet" for table in FIGURES[name].TABLES])


@functools.cache
def made(name: str, folder: Path) -> Drawing:
    return draw_figure(name, opened(name, folder))


def draw(name: str, folder: Path) -> str:
    return made(name, folder).svg


def caption(name: str, folder: Path) -> str:
    return made(name, folder).caption


QUICK = ("pruning_curves", "relevance_maps")


@pytest.mark.parametrize("name", slow_but(QUICK, FIGURES))
def test_a_figure_is_the_same_bytes_for_the_same_tables(name, small):
    first = draw(name, small)
    assert first == draw_figure(name, opened(name, small)).svg
    assert "<dc:date>" not in first


# What a study of one model, one calibration and one size cannot show.
BEYOND_SMALL = {"cross_task"}


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_gives_sample_counts(name, study):
    if name in BEYOND_SMALL and not answers.rows(
        opened(name, study), "FROM models WHERE model = 'b'"
    ):
        assert caption(name, study) == ""
    else:
        assert re.search(r"n = \d", caption(name, study))


@pytest.mark.parametrize("name", FIGURES)
def test_a_run_without_data_gives_an_image_that_says_so(name, tmp_path):
    write_tables(tmp_path)
    figure = draw_figure(name, opened(name, tmp_path)).figure
    assert figure.texts[0].get_text().startswith("Nothing to show because")
    assert caption(name, tmp_path) == ""


@pytest.mark.parametrize("name", slow_but(QUICK, FIGURES))
def test_a_figure_reads_every_table_that_it_declares(name, studies):
    """`small` and `study` are drawn from the declared tables alone; none of these can be left out either."""
    folder, module = studies["two models"], FIGURES[name]
    for left_out in module.TABLES:
        files = [folder / f"{table}.parquet" for table in module.TABLES if table != left_out]
        with pytest.raises(duckdb.CatalogException):
            draw_figure(name, database.connect(VIEWS, files))


def test_a_figure_is_made_where_the_studies_give_it_data(tmp_path):
    """Tables, kinds of diagnosis, and several names of what a figure compares."""
    raw = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    made = figures_of(load(raw, ROOT))
    assert FIGURES.keys() - made.keys() == {"what_layers_do"}
    raw["diagnoses"] = {"gaps": {"kind": "void"}}
    raw["studies"] = {
        "maps": raw["studies"]["maps"] | {"calibrations": ["facts"], "diagnoses": ["gaps"]}
    }
    assert figures_of(load(raw, ROOT)).keys() == {
        *(
            "relevance_maps",
            "metric_agreement",
            "calibration_size",
            "cost_of_metrics",
            "what_layers_do",
        ),
        "angular_triangle",
    }


def test_every_figure_with_data_has_a_place_of_its_own_on_the_page(study):
    page = whole(study)
    at = [page.find(f'<section id="{name}" class="figure">') for name in FIGURES]
    assert [place >= 0 for place in at] == [caption(name, study) != "" for name in FIGURES]
    # The figure that leads stands beside the answer, above all others.
    lead = max(
        FIGURES,
        key=lambda name: (at[list(FIGURES).index(name)] >= 0, getattr(FIGURES[name], "LEAD", 0)),
    )
    others = [place for name, place in zip(FIGURES, at, strict=True) if place >= 0 and name != lead]
    assert others == sorted(others) and at[list(FIGURES).index(lead)] < min(others)
    assert len({module.POSITION for module in FIGURES.values()}) == len(FIGURES)


def test_the_hints_of_curves_stand_on_their_points(small):
    """Each unseen mark lies where the error bar's point lies, and says its selector, value, interval and n."""
    connection = opened("pruning_curves", small)
    axes = draw_figure("pruning_curves", connection).figure.axes[0]
    hints = [
        each for each in axes.get_children() if str(each.get_gid()).startswith(style.HINT_PREFIX)
    ]
    said = {each.get_gid().removeprefix(style.HINT_PREFIX): each.get_ydata()[0] for each in hints}
    for selector, value, stderr, n in connection.execute(
        """SELECT selector, value, stderr, n_samples FROM scores
        WHERE own AND removed = 1 AND repair = 'none' AND healing = 'none'"""
    ).fetchall():
        text = f"{selector}, 1 removed: {value:.3f} ± {Z95 * stderr:.3f} acc_norm, n = {n}"
        assert said[text] == value
    drawing = draw("pruning_curves", small)
    mark = r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill: #\w+'
    ends = ("; fill-opacity: 0", '[;"] ?(?!fill-)')
    unseen, marks = (np.array(re.findall(mark + end, drawing), float) for end in ends)
    assert (
        len(unseen) == len(said)
        and abs(unseen[:, None] - marks).max(axis=2).min(axis=1).max() < 0.2
    )  # points


def test_the_efficiency_caption_tells_what_was_timed(tmp_path):
    """Two variants of one size whose patches act at one run and at two: both are drawn, and named."""
    plan = dict(model="m", calibration="c", removed=2)
    units = {"one": (1, 2), "two": (1, 3)}
    plans = [
        plan | dict(selector=name, unit=str(u), position=i)
        for name, both in units.items()
        for i, u in enumerate(both)
    ]
    measured = dict(
        repair="ghost", healing="none", repeats=5, parameters_ratio=0.5, latency_ratio_stderr=0.01
    )
    rows = [
        plan | measured | dict(selector=name, latency_ratio=ratio)
        for name, ratio in (("one", 0.8), ("two", 0.9))
    ]
    write_tables(tmp_path, plans=plans, efficiency=rows, models=[dict(model="m")])
    assert "2 variants, n = 5 repetitions each" in caption("efficiency", tmp_path)
    figure = draw_figure("efficiency", opened("efficiency", tmp_path)).figure
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["removed in 1 run", "removed in 2 runs", "base model"]
    ends = [segment[1][0] for bars in figure.axes[0].collections for segment in bars.get_segments()]
    # t of 2 degrees, for skewed times
    assert ends == pytest.approx([ratio * np.exp(4.302653 * 0.01 / ratio) for ratio in (0.8, 0.9)])


def test_orders_that_are_alike_have_an_interval_that_ends_at_one(tmp_path):
    """Of seven layers in the same order; of four there is none to say."""
    rows = [
        dict(
            model="m",
            calibration=f"of {n}",
            selector="base",
            removed=0,
            metric=metric,
            unit=str(unit),
            layer=unit,
        )
        | dict(component="layer", score=float(unit), n_samples=9)
        for n in (4, 7)
        for metric in ("accuracy", "cosine")
        for unit in range(n)
    ]
    write_tables(tmp_path, relevance=rows, models=[dict(model="m")])
    four, seven = answers.answer(
        opened("metric_agreement", tmp_path), "how_metrics_agree_on_each_task"
    )
    assert four["ci_low"] is None and [
        four["spearman"],
        seven["spearman"],
        seven["ci_high"],
    ] == pytest.approx([1] * 3)
    assert 0.9 < seven["ci_low"] < 1 and "n = 9" in caption("metric_agreement", tmp_path)


def rendered(folder: Path, drawn: tuple[str, ...] = ()) -> str:
    figures = [folder / f"{name}.svg" for name in drawn]
    for file in figures:
        file.write_text(draw(file.stem, folder), encoding="utf-8")
    facts = {"seed": 0, "versions": {"python": "3.11"}, "commit": None}
    return report.render(
        database.connect(VIEWS, folder.glob("*.parquet")), figures, TEMPLATE, facts
    )


@functools.cache
def whole(folder: Path) -> str:
    return rendered(folder, drawn=tuple(FIGURES))


def test_the_report_is_one_file_that_needs_nothing_else(study):
    page = whole(study)
    own = page.replace(
        explorer.scripts(), ""
    )  # names schemas and the editor, which nothing on the page asks for
    assert "http" not in own and len(page.encode()) < 5e6
    page = own
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert targets <= set(ids)
    assert page.count('role="img"') == sum(caption(name, study) != "" for name in FIGURES)
    assert "versions · python" in page


def test_the_report_puts_refused_plans_and_their_remedy_in_sight(tmp_path):
    write_study(
        tmp_path,
        n_layers=4,
        calibrations=("recall", "facts", "hops", "sorting"),
        sizes=(1,),
        n_test=20,
    )
    page = rendered(tmp_path)
    assert page.index('id="refused"') < page.index('id="summary"')
    assert "Give it more samples, or leave it out of the study" in page


def test_the_report_tells_of_outputs_that_are_not_finite(tmp_path):
    row = dict(
        model="m", calibration="c", selector="base", removed=0, metric="accuracy", n_samples=9
    )
    units = [
        row | dict(unit=str(unit), n_not_finite=count) for unit, count in enumerate((0, 4, None))
    ]
    write_tables(tmp_path, relevance=units)
    assert "not finite on some samples, which count as wrong: 1 on c (4 samples)." in rendered(
        tmp_path
    )
    write_tables(tmp_path, relevance=[units[0]])
    assert "not finite" not in rendered(tmp_path)


def test_a_healing_that_moved_nothing_is_said(tmp_path):
    """Both trainings are equally noisy; the loss of one falls by less than the error of the mean of its steps."""
    rows = []
    for healing, last in (("weak", 5.931), ("strong", 4.2)):
        key = dict(
            model="m", calibration="c", selector="s", removed=2, repair="none", healing=healing
        )
        rows.append(key | dict(step=0, validation_loss=5.96, learning_rate=0.0, chosen=False))
        for step, loss in enumerate(np.linspace(5.96, last, 12) + np.tile([0.2, -0.2], 6), start=1):
            told = dict(validation_loss=last, chosen=True) if step == 12 else dict(chosen=False)
            rows.append(key | told | dict(step=step, loss=loss, learning_rate=1 / step))
    write_tables(tmp_path, training=rows)
    (said,) = summary.healings(database.connect(VIEWS, tmp_path.glob("*.parquet")))
    assert (
        "weak after 2 out by s on c: 5.960 to 5.931 in 12 steps, the learning rate rising over 1."
        in said
    )
    assert "strong" not in said


def test_names_from_the_configuration_cannot_break_the_page(tmp_path):
    write_study(tmp_path, n_layers=4, calibrations=("<b>&",), sizes=(1,), healed=1, n_test=20)
    page = rendered(tmp_path, drawn=("relevance_maps",))
    assert "<b>&<" not in page and "&lt;b&gt;&amp;" in page


@pytest.mark.parametrize("script", ["plot_figure", "render_report"])
def test_report_scripts_start_without_torch(script):
    code = f"import sys, runpy; runpy.run_path('workflow/scripts/{script}.py'); assert 'torch' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True
    )

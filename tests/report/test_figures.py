"""Every figure and the report, on made-up studies of several sizes and on a run that has measured
nothing.
"""

import functools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml

from lamina.diagnosis.patching import POSITION_SETS
from lamina.relevance.statistics import Z95
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.report import answers, cautions, database, explorer, page
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.drawing import Drawing, draw_figure
from lamina_workflow.stages.report import list_figures
from tests import ROOT
from tests.given.figures import FIGURES
from tests.given.plausible_tables import write_study, write_tables
from tests.given.slow import slow_except

TEMPLATE = ROOT / "workflow" / "report" / "report.html.j2"
QUICK_FIGURES = ("pruning_curves", "relevance_maps")
# What a study of one model, one calibration and one size cannot show.
NEEDS_A_LARGER_STUDY = {"cross_task", "relevance_by_step", "checkpoint_maps", "healed_scores"}
STUDENT_T_2_DEGREES = 4.302653  # the 97.5 % quantile


@pytest.fixture(scope="module")
def small_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of one model, one calibration and one size."""
    folder = tmp_path_factory.mktemp("study")
    write_study(folder, n_layers=4, calibrations=("recall",), sizes=(1,), healed_size=1, n_test=40)
    return folder


@pytest.fixture(params=slow_except(["two models"], ["small", "two models"]))
def study(request: pytest.FixtureRequest, small_study: Path, two_models: Path) -> Path:
    return {"small": small_study, "two models": two_models}[request.param]


def connect(name: str, folder: Path) -> duckdb.DuckDBPyConnection:
    """What the job of a figure opens: its tables and no other."""
    tables = [folder / f"{table}.parquet" for table in FIGURES[name].TABLES]
    return database.connect_views(tables)


@functools.cache
def draw(name: str, folder: Path) -> Drawing:
    """A figure of a study, drawn once for all tests."""
    return draw_figure(name, connect(name, folder))


@pytest.mark.parametrize("name", slow_except(QUICK_FIGURES, FIGURES))
def test_a_figure_is_the_same_bytes_for_the_same_tables(name: str, small_study: Path) -> None:
    svg = draw(name, small_study).svg
    assert svg == draw_figure(name, connect(name, small_study)).svg
    assert "<dc:date>" not in svg


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_gives_sample_counts(name: str, small_study: Path, two_models: Path) -> None:
    assert re.search(r"n = \d", draw(name, two_models).caption)
    small_caption = draw(name, small_study).caption
    if name in NEEDS_A_LARGER_STUDY:
        assert small_caption == ""
    else:
        assert re.search(r"n = \d", small_caption)


@pytest.mark.parametrize("name", FIGURES)
def test_a_run_without_data_gives_an_image_that_says_so(name: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    drawing = draw_figure(name, connect(name, tmp_path))
    assert drawing.figure.texts[0].get_text().startswith("Nothing to show because")
    assert drawing.caption == ""


@pytest.mark.parametrize("name", slow_except(QUICK_FIGURES, FIGURES))
def test_a_figure_reads_every_table_that_it_declares(name: str, two_models: Path) -> None:
    """Other tests draw from the declared tables alone; none of these can be left out either."""
    tables = FIGURES[name].TABLES
    for missing_table in tables:
        files = [two_models / f"{table}.parquet" for table in tables if table != missing_table]
        with pytest.raises(duckdb.CatalogException):
            draw_figure(name, database.connect_views(files))


def test_a_figure_is_made_if_the_studies_give_it_data() -> None:
    """The default study has no diagnoses, checkpoints or lists of prompts; a study of maps on one
    calibration has few figures.
    """
    configuration = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    default_figures = list_figures(load_configuration(configuration, ROOT)).keys()
    assert FIGURES.keys() - default_figures == {
        "what_layers_do",
        "checkpoint_maps",
        "efficiency_grid",
        "healed_scores",
        "repetition_maps",
    }

    maps = configuration["studies"]["maps"]
    configuration["diagnoses"] = {"gaps": {"kind": "void"}}
    configuration["studies"] = {"maps": maps | {"calibrations": ["facts"], "diagnoses": ["gaps"]}}
    assert list_figures(load_configuration(configuration, ROOT)).keys() == {
        "relevance_maps",
        "cosine_scatter",
        "rank_confusion",
        "metric_agreement",
        "calibration_size",
        "cost_of_metrics",
        "what_layers_do",
        "angular_triangle",
        "distance_curves",
    }


def test_a_map_of_checkpoints_takes_two_of_one_training() -> None:
    configuration = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    model = configuration["models"]["reference"]
    for name, series in (("early", "a"), ("late", "b")):
        configuration["models"][name] = model | {"series": series, "step": len(name)}
    configuration["studies"]["maps"]["models"] = ["early", "late"]
    assert "checkpoint_maps" not in list_figures(load_configuration(configuration, ROOT))
    configuration["models"]["late"]["series"] = "a"
    assert "checkpoint_maps" in list_figures(load_configuration(configuration, ROOT))


def test_a_grid_of_efficiency_takes_several_prompts_or_batches() -> None:
    configuration = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    assert "efficiency_grid" not in list_figures(load_configuration(configuration, ROOT))
    configuration["benchmarks"]["efficiency"]["batch"] = [1, 8]
    assert "efficiency_grid" in list_figures(load_configuration(configuration, ROOT))


def test_test_scores_of_a_healing_take_a_pass_that_is_tested() -> None:
    configuration = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    configuration["healings"]["lora"]["checkpoints"] = [1]
    assert "healed_scores" in list_figures(load_configuration(configuration, ROOT))


def test_the_page_has_every_figure_with_data_in_order_of_position(study: Path) -> None:
    """Except for the one that leads, which is above all others."""
    html = render_whole_page(study)
    offsets = {name: html.find(f'<section id="{name}" class="figure">') for name in FIGURES}
    shown = [name for name in FIGURES if offsets[name] >= 0]
    assert shown == [name for name in FIGURES if draw(name, study).caption]

    lead = max(shown, key=lambda name: getattr(FIGURES[name], "LEAD", 0))
    other_offsets = [offsets[name] for name in shown if name != lead]
    assert other_offsets == sorted(other_offsets)
    assert offsets[lead] < min(other_offsets)


def test_a_figure_that_few_look_for_is_closed_until_a_reader_opens_it(two_models: Path) -> None:
    html = render_page(two_models, figures=("angular_triangle", "distance_curves"))
    sections = {}
    for section in html.split("<section")[1:]:
        name = re.match(r' id="(\w+)"', section)
        if name:
            sections[name[1]] = section.split("</section>")[0]
    heading = FIGURES["distance_curves"].TITLE
    assert f"<details><summary><h2>{heading}</h2></summary>" in sections["distance_curves"]
    assert sections["distance_curves"].rstrip().endswith("</details>")
    assert "<summary><h2>" not in sections["angular_triangle"]
    assert f'<a href="#distance_curves">{heading}</a>' in html


def test_no_two_figures_have_the_same_position() -> None:
    assert len({module.POSITION for module in FIGURES.values()}) == len(FIGURES)


def hint_positions(drawing: Drawing) -> dict[str, float]:
    """The y coordinates of the hints of the first panel, by their text."""
    positions = {}
    for artist in drawing.figure.axes[0].get_children():
        identifier = str(artist.get_gid())
        if identifier.startswith(style.HINT_PREFIX):
            positions[identifier.removeprefix(style.HINT_PREFIX)] = artist.get_ydata()[0]
    return positions


def test_the_hints_of_curves_give_value_interval_and_count(small_study: Path) -> None:
    connection = connect("pruning_curves", small_study)
    positions = hint_positions(draw_figure("pruning_curves", connection))
    rows = answers.query_rows(
        connection,
        """SELECT selector, value, stderr, n_samples FROM scores
        WHERE own AND removed = 1 AND repair = 'none' AND healing = 'none'""",
    )
    assert rows
    for row in rows:
        interval = f"{row['value']:.3f} ± {Z95 * row['stderr']:.3f}"
        text = f"{row['selector']}, 1 removed: {interval} acc_norm, n = {row['n_samples']}"
        assert positions[text] == row["value"]


def test_the_hints_of_curves_lie_on_their_points(small_study: Path) -> None:
    """Each invisible mark in the SVG is within .2 points of a visible one."""
    svg = draw("pruning_curves", small_study).svg
    mark = r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill: #\w+'
    invisible = np.array(re.findall(mark + "; fill-opacity: 0", svg), float)
    visible = np.array(re.findall(mark + '[;"] ?(?!fill-)', svg), float)
    assert len(invisible) == len(hint_positions(draw("pruning_curves", small_study)))
    distances = abs(invisible[:, None] - visible).max(axis=2)
    assert distances.min(axis=1).max() < 0.2


def test_patching_is_drawn_by_the_names_of_its_measures(tmp_path: Path) -> None:
    """One line for each set of positions, with its control."""
    keys = {"model": "m", "calibration": "none", "diagnosis": "d", "kind": "patching"}
    rows = []
    for index, positions in enumerate(POSITION_SETS):
        for layer in range(3):
            measured = {"measure": f"recovery_{positions}", "layer": layer, "n_samples": 7}
            rows.append({**keys, **measured, "value": index / 4 + layer / 8, "control": 0.1})
    write_tables(tmp_path, diagnoses=rows, models=[{"model": "m"}])
    (axes,) = draw("what_layers_do", tmp_path).figure.axes
    lines = [line.get_ydata().tolist() for line in axes.lines]
    for index in range(len(POSITION_SETS)):
        assert [index / 4 + layer / 8 for layer in range(3)] in lines
    assert lines.count([0.1] * 3) == len(POSITION_SETS)


def test_efficiency_shows_what_was_timed(tmp_path: Path) -> None:
    """Of two variants of one size, whose patches act at one run and at two, both are drawn."""
    variant = {"model": "m", "calibration": "c", "removed": 2}
    units = {"one run": (1, 2), "two runs": (1, 3)}
    ratios = {"one run": 0.8, "two runs": 0.9}
    stderr = 0.01
    plans = []
    timings = []
    for selector in units:
        for position, unit in enumerate(units[selector]):
            plans.append({**variant, "selector": selector, "unit": str(unit), "position": position})
        timings.append(
            {
                **variant,
                "selector": selector,
                "repair": "ghost",
                "healing": "none",
                "repeats": 5,
                "parameters_ratio": 0.5,
                "latency_ratio": ratios[selector],
                "latency_ratio_stderr": stderr,
            }
        )
    write_tables(tmp_path, plans=plans, efficiency=timings, models=[{"model": "m"}])
    drawing = draw("efficiency", tmp_path)
    assert "2 variants, n = 5 repetitions each" in drawing.caption
    legend_texts = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert legend_texts == ["removed in 1 run", "removed in 2 runs", "base model"]

    upper_ends = []
    for bars in drawing.figure.axes[0].collections:
        upper_ends += [segment[1][0] for segment in bars.get_segments()]
    # The interval is that of the logarithm, and of 2 degrees of freedom, for times are skewed.
    expected = [ratio * np.exp(STUDENT_T_2_DEGREES * stderr / ratio) for ratio in ratios.values()]
    assert upper_ends == pytest.approx(expected)


def test_equal_orders_have_an_interval_that_ends_at_one(tmp_path: Path) -> None:
    """Of seven layers in the same order; of four there is no interval."""
    rows = []
    for n_layers in (4, 7):
        for metric in ("accuracy", "cosine"):
            for layer in range(n_layers):
                rows.append(
                    {
                        "model": "m",
                        "calibration": f"of {n_layers}",
                        "selector": "base",
                        "removed": 0,
                        "metric": metric,
                        "unit": str(layer),
                        "layer": layer,
                        "component": "layer",
                        "score": float(layer),
                        "n_samples": 9,
                    }
                )
    write_tables(tmp_path, relevance=rows, models=[{"model": "m"}])
    connection = connect("metric_agreement", tmp_path)
    four, seven = answers.answer_question(connection, "how_metrics_agree_on_each_task")
    assert four["spearman"] == pytest.approx(1)
    assert four["ci_low"] is None
    assert seven["spearman"] == pytest.approx(1)
    assert seven["ci_high"] == pytest.approx(1)
    assert 0.9 < seven["ci_low"] < 1
    assert "n = 9" in draw("metric_agreement", tmp_path).caption


def render_page(folder: Path, figures: tuple[str, ...] = ()) -> str:
    """The report of a study with some of its figures."""
    files = []
    for name in figures:
        file = folder / f"{name}.svg"
        file.write_text(draw(name, folder).svg, encoding="utf-8")
        files.append(file)
    facts = {"seed": 0, "versions": {"python": "3.11"}, "commit": None}
    connection = database.connect_views(folder.glob("*.parquet"))
    return page.render_report(connection, files, TEMPLATE, facts)


@functools.cache
def render_whole_page(folder: Path) -> str:
    return render_page(folder, figures=tuple(FIGURES))


def test_the_report_is_one_file_that_needs_nothing_else(study: Path) -> None:
    html = render_whole_page(study)
    assert len(html.encode()) < 5e6
    # The scripts name schemas and the editor, which nothing on the page asks for.
    html = html.replace(explorer.bundle_scripts(), "")
    assert "http" not in html
    assert not re.search(r'(src|href)="(?!#|data:)', html)
    identifiers = re.findall(r'\bid="([^"]+)"', html)
    assert len(identifiers) == len(set(identifiers))
    targets = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert targets <= set(identifiers)
    n_figures = sum(draw(name, study).caption != "" for name in FIGURES)
    assert html.count('role="img"') == n_figures
    assert "versions · python" in html


@pytest.fixture(scope="module")
def odd_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a study with refused plans, and a calibration whose name is HTML."""
    folder = tmp_path_factory.mktemp("odd")
    calibrations = ("<b>&", "facts", "hops", "sorting")
    write_study(folder, n_layers=4, calibrations=calibrations, sizes=(1,), healed_size=1, n_test=20)
    return render_page(folder, figures=("relevance_maps",))


def test_the_report_puts_refused_plans_and_their_remedy_in_sight(odd_page: str) -> None:
    assert odd_page.index('id="refused"') < odd_page.index('id="summary"')
    assert "Give it more samples, or leave it out of the study" in odd_page


def test_names_from_the_configuration_cannot_break_the_page(odd_page: str) -> None:
    assert "<b>&<" not in odd_page
    assert "&lt;b&gt;&amp;" in odd_page


def list_nonfinite_units(folder: Path) -> list[str]:
    connection = database.connect_views(folder.glob("*.parquet"))
    return cautions.list_nonfinite_units(connection)


def test_the_report_tells_of_outputs_that_are_not_finite(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "model": "m",
        "calibration": "c",
        "selector": "base",
        "removed": 0,
        "metric": "accuracy",
        "n_samples": 9,
    }
    finite_unit = {**row, "unit": "0", "n_not_finite": 0}
    overflowing_unit = {**row, "unit": "1", "n_not_finite": 4}
    unknown_unit = {**row, "unit": "2", "n_not_finite": None}
    write_tables(tmp_path, relevance=[finite_unit, overflowing_unit, unknown_unit])
    (sentence,) = list_nonfinite_units(tmp_path)
    message = "not finite on some samples, which count as wrong: 1 on c (4 samples)."
    assert message in sentence
    write_tables(tmp_path, relevance=[finite_unit])
    assert list_nonfinite_units(tmp_path) == []


def training_curve(healing: str, last_loss: float) -> list[dict[str, Any]]:
    """Twelve noisy steps from a loss of 5.96 to the last one."""
    keys: dict[str, Any] = {
        "model": "m",
        "calibration": "c",
        "selector": "s",
        "removed": 2,
        "repair": "none",
        "healing": healing,
    }
    first_row = {"step": 0, "validation_loss": 5.96, "learning_rate": 0.0, "chosen": False}
    rows = [{**keys, **first_row}]
    losses = np.linspace(5.96, last_loss, 12) + np.tile([0.2, -0.2], 6)
    for step, loss in enumerate(losses, start=1):
        rows.append(
            {**keys, "step": step, "loss": loss, "learning_rate": 1 / step, "chosen": False}
        )
    rows[-1] |= {"validation_loss": last_loss, "chosen": True}
    return rows


def test_a_healing_that_changed_nothing_is_reported(tmp_path: Path) -> None:
    """One training lowers the loss by less than the error of the mean of its steps."""
    rows = [*training_curve("weak", 5.931), *training_curve("strong", 4.2)]
    write_tables(tmp_path, training=rows)
    (sentence,) = cautions.list_ineffective_healings(
        database.connect_views(tmp_path.glob("*.parquet"))
    )
    losses = "weak with 2 removed by s on c: 5.960 to 5.931 in 12 steps"
    assert f"{losses}, 1 of them warm-up." in sentence
    assert "strong" not in sentence


def search_end(removed: int, loss: float, strategy: str = "portfolio") -> dict[str, Any]:
    """What a search measured at its end, of a size or (strategy none) of the base model."""
    return {
        "model": "m",
        "calibration": "c",
        "selector": "best",
        "strategy": strategy,
        "removed": removed,
        "step": removed,
        "units": [str(layer) for layer in range(removed)],
        "stage": "held back",
        "n_samples": 30,
        "n_new": 30,
        "loss": loss,
        "kept": True,
        "layer_tokens": 0.0,
        "evaluation": removed,
    }


def test_judging_documents_that_a_cut_makes_likelier_are_reported(tmp_path: Path) -> None:
    """By more than a tenth: 22 nats to 17, but not to 21."""
    rows = [search_end(0, 22.0, "none"), search_end(1, 21.0), search_end(2, 17.0)]
    write_tables(tmp_path, searches=rows)
    with database.connect_views(tmp_path.glob("*.parquet")) as connection:
        (sentence,) = cautions.list_likelier_documents(connection)

    assert "2 removed by best on c (loss 22 to 17, n = 30)." in sentence
    assert "1 removed" not in sentence


@pytest.mark.parametrize("script", ["plot_figure", "render_report"])
def test_report_scripts_start_without_torch(script: str) -> None:
    code = (
        f"import sys, runpy; runpy.run_path('workflow/scripts/{script}.py'); "
        "assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True
    )


def test_a_score_of_all_or_no_answers_has_the_interval_of_wilson() -> None:
    """By hand, z = 1.96: of n answers that are all right, it begins at n / (n + z²)."""
    below, above = style.find_reach(1.0, None, 4)
    assert (below, above) == pytest.approx((1 - 4 / (4 + 1.959964**2), 0.0))
    assert style.find_reach(0.0, 0.0, 4) == pytest.approx((above, below))

    assert style.find_reach(0.5, 0.1, 4) == pytest.approx((0.1959964, 0.1959964))
    # Nothing is known of a perplexity without an error.
    assert all(map(math.isnan, style.find_reach(12.0, None, 4)))

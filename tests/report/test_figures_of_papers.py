"""Figures that papers have, on small tables whose answers numpy repeats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from lamina_workflow.report import answers, database
from lamina_workflow.report.figures import rank_confusion, style
from lamina_workflow.report.figures.drawing import Drawing, draw_figure
from tests.given.figures import FIGURES
from tests.given.plausible_tables import write_tables

Row = dict[str, Any]


def draw(name: str, folder: Path) -> Drawing:
    """A figure from the tables that it declares."""
    tables = [folder / f"{table}.parquet" for table in FIGURES[name].TABLES]
    return draw_figure(name, database.connect_views(tables))


def answer(question: str, folder: Path) -> list[Row]:
    connection = database.connect_views(folder.glob("*.parquet"))
    return answers.answer_question(connection, question)


CALIBRATIONS = ("recall", "facts", "hops")
N_LAYERS = 11
INNER = slice(2, N_LAYERS - 2)


@pytest.fixture(scope="module")
def scores() -> dict[str, np.ndarray]:
    """Accuracy with many ties, and cosine, (calibrations, layers)."""
    rng = np.random.default_rng(3)
    accuracy = rng.integers(0, 4, (len(CALIBRATIONS), N_LAYERS)) / 10
    cosine = rng.random((len(CALIBRATIONS), N_LAYERS)) + accuracy
    return {"accuracy": accuracy, "cosine": cosine}


@pytest.fixture(scope="module")
def scored_layers(scores: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with the relevance of every layer by two metrics."""
    rows = []
    for metric, values in scores.items():
        for calibration, layer_scores in zip(CALIBRATIONS, values, strict=True):
            for layer, score in enumerate(layer_scores):
                rows.append(
                    {
                        "model": "m",
                        "calibration": calibration,
                        "selector": "base",
                        "removed": 0,
                        "metric": metric,
                        "unit": str(layer),
                        "layer": layer,
                        "component": "layer",
                        "score": float(score),
                        "ci_low": float(score) - 0.1,
                        "ci_high": float(score) + 0.1,
                        "n_samples": 70,
                    }
                )
    folder = tmp_path_factory.mktemp("scored_layers")
    write_tables(folder, relevance=rows, models=[{"model": "m", "n_layers": N_LAYERS}])
    return folder


def test_the_scatter_leaves_out_the_outer_layers_and_gives_their_correlation(
    scores: dict[str, np.ndarray], scored_layers: Path
) -> None:
    """Of eleven layers the first and last two, as figure 3 A of the paper."""
    (axes,) = draw("cosine_scatter", scored_layers).figure.axes
    inner_cosine = scores["cosine"][:, INNER].ravel()
    inner_accuracy = scores["accuracy"][:, INNER].ravel()
    points = set()
    for bars in axes.containers:
        data_line = bars.lines[0]
        points.add((float(data_line.get_xdata()[0]), float(data_line.get_ydata()[0])))
    assert points == set(zip(inner_cosine.tolist(), inner_accuracy.tolist(), strict=True))

    pearson = np.corrcoef(inner_cosine, inner_accuracy)[0, 1]
    reach = 1.959964 / np.sqrt(len(inner_cosine) - 3)
    low, high = np.tanh(np.arctanh(pearson) + np.array([-reach, reach]))
    expected = style.with_minus_signs(f"r = {pearson:.2f} [{low:.2f}, {high:.2f}]")
    assert axes.get_title(loc="left") == f"every layer: {expected}"


def test_the_confusion_of_ranks_counts_every_unit_once(
    scores: dict[str, np.ndarray], scored_layers: Path
) -> None:
    """Of equal scores the deeper layer has the lower rank, as for a selector."""
    n_units = N_LAYERS - 4
    ranks = {}
    for metric, values in scores.items():
        deepest_first = values[:, INNER][:, ::-1]
        ranks[metric] = rankdata(deepest_first, "ordinal", axis=1)[:, ::-1].astype(int)
    counts = np.zeros((n_units, n_units), int)
    np.add.at(counts, (ranks["accuracy"] - 1, ranks["cosine"] - 1), 1)

    drawing = draw("rank_confusion", scored_layers)
    drawn_counts = np.zeros((n_units, n_units), int)
    (axes,) = drawing.figure.axes
    for text in axes.texts:
        column, row = text.get_position()
        drawn_counts[row, column] = int(text.get_text())
    assert (drawn_counts == counts).all()
    assert counts.sum() == len(CALIBRATIONS) * n_units

    distances = abs(ranks["accuracy"] - ranks["cosine"])
    misranked = (distances > 0).mean()
    badly = (distances > n_units / 4).mean()
    assert f"{100 * misranked:.0f} % differ in rank, {100 * badly:.0f} % by more" in drawing.caption
    assert "21 units of 3 calibrations, n = 210 samples" in drawing.caption


def test_colours_tell_small_errors_of_ranks_from_large_ones() -> None:
    """A quarter of eight ranks is two: that is near, and three is far."""
    colours = []
    for cosine_rank in (4, 6, 7):
        cell = {"accuracy_rank": 4, "cosine_rank": cosine_rank, "n_units": 8}
        colours.append(rank_confusion.choose_colours(cell))
    assert colours == [rank_confusion.SAME_RANK, rank_confusion.NEAR_RANK, rank_confusion.FAR_RANK]


def test_the_drawn_confusion_has_the_shares_of_table_agreements(tmp_path: Path) -> None:
    """Bounds of the shares come from there, of the comparison with cosine alone."""
    rows = []
    for metric, order in (("accuracy", range(4)), ("cosine", (1, 0, 2, 3))):
        for layer, score in enumerate(order):
            rows.append(
                {
                    "model": "m",
                    "calibration": "c",
                    "selector": "base",
                    "removed": 0,
                    "metric": metric,
                    "unit": str(layer),
                    "layer": layer,
                    "component": "layer",
                    "score": float(score),
                    "n_samples": 9,
                }
            )
    agreements = []
    for metric, low in (("cosine", 0.25), ("angular", 0.75)):
        bounds = {"statistic": "misranked", "value": 0.5, "ci_low": low, "ci_high": 1.0}
        agreements.append(
            {"model": "m", "component": "layer", "metric": metric, "n_units": 4, **bounds}
        )
    write_tables(tmp_path, relevance=rows, agreements=agreements, models=[{"model": "m"}])
    caption = draw("rank_confusion", tmp_path).caption
    assert "50 % (95 % bounds 25 to 100 %) differ in rank, 0 % by more" in caption


def relevance_row(metric: str, selector: str, step: int, layer: int, score: float) -> Row:
    return {
        "model": "m",
        "calibration": "c",
        "selector": selector,
        "removed": step,
        "metric": metric,
        "unit": str(layer),
        "layer": layer,
        "component": "layer",
        "score": score,
        "ci_low": score - 0.1,
        "ci_high": score + 0.1,
        "n_samples": 60,
    }


def write_selection(folder: Path, selector: str, own_metric: str) -> dict[str, np.ndarray]:
    """Tables of a selector that removes layers 3, 1 and 0 of five, by one of two metrics.

    Returns the scores by metric, (steps, layers), NaN where a layer is gone.
    """
    rng = np.random.default_rng(7)
    removed_layers = [3, 1, 0]
    scores = {}
    rows = []
    for metric in ("accuracy", "margin"):
        scores[metric] = rng.uniform(-0.3, 1, (3, 5))
        for step in range(3):
            scores[metric][step, removed_layers[:step]] = np.nan
            for layer in set(range(5)) - set(removed_layers[:step]):
                name = selector if step else "base"
                score = float(scores[metric][step, layer])
                rows.append(relevance_row(metric, name, step, layer, score))
    plan = []
    for position, layer in enumerate(removed_layers, start=1):
        plan.append(
            {
                "model": "m",
                "calibration": "c",
                "selector": selector,
                "removed": 3,
                "unit": str(layer),
                "position": position,
                # Summed in another order than the table, as plans are.
                "score": float(scores[own_metric][position - 1, layer]) * (1 + 1e-15),
                "accuracy_before": 1 - position / 10,
            }
        )
    write_tables(folder, relevance=rows, plans=plan, models=[{"model": "m", "n_layers": 5}])
    return scores


@pytest.mark.parametrize("own_metric", ["accuracy", "margin"])
def test_a_map_by_step_shows_the_metric_that_chose(own_metric: str, tmp_path: Path) -> None:
    """The sweep of a step measures many metrics; the plan has the scores of one of them."""
    scores = write_selection(tmp_path, "mine", own_metric)
    axes = draw("relevance_by_step", tmp_path).figure.axes[0]
    (image,) = axes.images
    drawn_scores = np.ma.filled(image.get_array().astype(float), np.nan)
    np.testing.assert_allclose(drawn_scores, scores[own_metric])


def test_a_map_by_step_frames_what_goes_and_crosses_out_what_is_gone(tmp_path: Path) -> None:
    scores = write_selection(tmp_path, "mine", "accuracy")["accuracy"]
    figure = draw("relevance_by_step", tmp_path).figure
    axes = figure.axes[0]
    cells_by_marker: dict[str, set[tuple[int, int]]] = {}
    for line in axes.lines:
        cells = zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True)
        cells_by_marker[line.get_marker()] = set(cells)
    assert cells_by_marker["s"] == {(3, 0), (1, 1), (0, 2)}
    assert cells_by_marker["x"] == {(3, 1), (3, 2), (1, 2)}
    includes_zero = np.argwhere(abs(scores) <= 0.1)
    assert cells_by_marker["o"] == {(layer, step) for step, layer in includes_zero.tolist()}

    notes = []
    for child in axes.child_axes:
        notes += [text.get_text() for text in child.get_yticklabels()]
    # One more answer is right and one more is wrong, so that no accuracy is certain.
    shares = (60 * np.array([0.9, 0.8, 0.7]) + 1) / 62
    stderr = np.sqrt(shares * (1 - shares) / 62)
    assert notes == [
        f"{accuracy:.2f} ± {1.959964 * error:.2f}"
        for accuracy, error in zip((0.9, 0.8, 0.7), stderr, strict=True)
    ]


def test_checkpoints_are_rows_of_one_map_in_the_order_of_training(tmp_path: Path) -> None:
    """A checkpoint at chance has no accuracy relevance; a model by itself is in no map."""
    models = []
    relevance = []
    sweeps = []
    calibrations = []
    steps = {"late": 2000, "early": 500, "alone": None}
    n_right = {"late": 9, "early": 4, "alone": 5}
    for model, step in steps.items():
        series = "training" if step else None
        models.append({"model": model, "n_layers": 2, "series": series, "step": step})
        calibrations.append({"model": model, "calibration": "c", "choice_score": "acc_norm"})
        for layer in range(2):
            score = layer / 4 + 0.5 if model == "late" else None
            row = {
                "selector": "base",
                "removed": 0,
                "metric": "accuracy",
                "unit": str(layer),
                "layer": layer,
                "component": "layer",
                "score": score,
                "n_samples": 10,
            }
            relevance.append({"model": model, "calibration": "c", **row})
        for sample in range(10):
            answer = {
                "selector": "base",
                "removed": 0,
                "unit": "none",
                "sample": sample,
                "correct": True,
                "correct_norm": sample < n_right[model],
            }
            sweeps.append({"model": model, "calibration": "c", **answer})
    write_tables(
        tmp_path, models=models, relevance=relevance, sweeps=sweeps, calibrations=calibrations
    )

    figure = draw("checkpoint_maps", tmp_path).figure
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in maps] == ["training: accuracy on c"]
    drawn_scores = np.ma.filled(maps[0].images[0].get_array().astype(float), np.nan)
    np.testing.assert_allclose(drawn_scores, [[np.nan, np.nan], [0.5, 0.75]])
    assert [label.get_text() for label in maps[0].get_yticklabels()] == ["500", "2,000"]
    (right_axis,) = maps[0].child_axes
    notes = [label.get_text() for label in right_axis.get_yticklabels()]
    assert [note.split()[0] for note in notes] == ["0.40", "0.90"]


def test_accuracies_beside_checkpoints_compare_choices_as_the_calibration_does(
    tmp_path: Path,
) -> None:
    models = []
    relevance = []
    sweeps = []
    calibrations = []
    for step, choice_score in enumerate(("acc", "acc_norm"), start=1):
        key = {"model": choice_score, "calibration": "c"}
        models.append({"model": choice_score, "n_layers": 1, "series": "s", "step": step})
        calibrations.append({**key, "choice_score": choice_score})
        relevance.append({**relevance_row("accuracy", "base", 0, 0, 0.5), **key})
        for sample in range(4):
            sweep = {"selector": "base", "removed": 0, "unit": "none", "sample": sample}
            right = {"correct": sample < 1, "correct_norm": sample < 3}
            sweeps.append({**key, **sweep, **right})
    write_tables(
        tmp_path, models=models, relevance=relevance, sweeps=sweeps, calibrations=calibrations
    )
    rows = answer("how_relevance_forms_in_training", tmp_path)
    assert [(row["step"], row["accuracy"], row["n_accuracy"]) for row in rows] == [
        (1, 0.25, 4),
        (2, 0.75, 4),
    ]


def patch_row(selector: str, repair: str, boundary: tuple[int, int], errors: np.ndarray) -> Row:
    """A fit whose errors without and with the repair are the two rows of `errors`."""
    start, end = boundary
    return {
        "model": "m",
        "calibration": "c",
        "selector": selector,
        "removed": 3,
        "repair": repair,
        "healing": "none",
        "boundary": f"{start}-{end}",
        "start": start,
        "end": end,
        "channel_mae_before": errors[0].tolist(),
        "channel_mae_after": errors[1].tolist(),
        "mae_before": errors[0].mean(),
        "mae_after": errors[1].mean(),
        "heldout_error_before": 0.5,
        "heldout_error_before_stderr": 0.01,
        "heldout_error": 0.25,
        "heldout_error_stderr": 0.02,
        "n_heldout": 33,
    }


def test_errors_at_a_boundary_are_means_of_channels_in_the_order_without_repair(
    tmp_path: Path,
) -> None:
    """512 channels are 128 groups of four. The run with both repairs is drawn, not a longer one."""
    rng = np.random.default_rng(5)
    bare = rng.random(512)
    patches = []
    repaired = {"ghost": rng.random(512), "linearpatch": rng.random(512)}
    for repair, errors in repaired.items():
        patches.append(patch_row("s", repair, (3, 5), np.stack([bare, errors])))
    patches.append(patch_row("s", "ghost", (6, 9), rng.random((2, 512))))
    write_tables(tmp_path, patches=patches, models=[{"model": "m"}])

    drawing = draw("boundary_errors", tmp_path)
    (axes,) = drawing.figure.axes
    assert axes.get_title(loc="left") == "c: run 3-5 by s"
    order = np.argsort(-bare)
    expected_lines = [
        values[order].reshape(128, 4).mean(axis=1) for values in (bare, *repaired.values())
    ]
    drawn_lines = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) > 1]
    assert len(drawn_lines) == 3  # both repairs start from the same errors
    for drawn, expected in zip(drawn_lines, expected_lines, strict=True):
        np.testing.assert_allclose(drawn, expected)
    assert "ghost: 0.500 ± 0.020 → 0.250 ± 0.039" in axes.texts[0].get_text()
    assert "n = 33" in drawing.caption
    assert "each point averages up to 4" in drawing.caption


def test_repairs_held_against_other_documents_have_a_bare_line_each(tmp_path: Path) -> None:
    errors = np.array([[3.0, 2.0], [1.0, 0.5]])
    patches = [
        patch_row("s", "ghost", (3, 5), errors),
        patch_row("s", "mixed", (3, 5), errors + 0.25),
    ]
    write_tables(tmp_path, patches=patches, models=[{"model": "m"}])
    (axes,) = draw("boundary_errors", tmp_path).figure.axes
    bare_lines = [line for line in axes.lines if line.get_color() == "black"]
    assert [line.get_ydata().tolist() for line in bare_lines] == [[3.0, 2.0], [3.25, 2.25]]


def healed_rows(repair: str, healing: str, epoch: int, value: float) -> tuple[Row, Row]:
    """The training row that a healing kept, and its score on the calibration's own task."""
    key = {
        "model": "m",
        "calibration": "c",
        "selector": "s",
        "removed": 2,
        "repair": repair,
        "healing": healing,
    }
    training_row = {**key, "epoch": epoch, "step": 10 * epoch, "chosen": True}
    score = {"task": "c", "metric": "acc", "value": value, "stderr": 0.01, "n_samples": 30}
    return training_row, {**key, **score, "higher_is_better": True}


def test_scores_after_passes_are_joined_and_the_star_is_that_of_validation(tmp_path: Path) -> None:
    """A healing of another name, or that kept another pass than its name says, is no checkpoint."""
    scores_by_healing = {
        "lora": (2, 0.7),
        "lora-1": (1, 0.6),
        "lora-2": (2, 0.7),
        "lora-3": (3, 0.65),
        "lora-9": (3, 0.1),
        "full-1": (1, 0.2),
    }
    training = []
    benchmarks = [healed_rows("ghost", "none", 0, 0.5)[1]]
    for healing, (epoch, value) in scores_by_healing.items():
        training_row, score = healed_rows("ghost", healing, epoch, value)
        training.append(training_row)
        benchmarks.append(score)
    base = {"selector": "none", "calibration": "none", "removed": 0, "repair": "none"}
    benchmarks.append(benchmarks[0] | base | {"value": 0.9})
    plans = []
    for position, unit in enumerate(("1", "2"), start=1):
        plan = {"model": "m", "calibration": "c", "selector": "s", "removed": 2}
        plans.append({**plan, "unit": unit, "position": position})
    write_tables(
        tmp_path,
        training=training,
        benchmarks=benchmarks,
        plans=plans,
        calibrations=[{"model": "m", "calibration": "c", "source": "c", "chance_accuracy": 0.25}],
        models=[{"model": "m"}],
    )

    drawing = draw("healed_scores", tmp_path)
    (axes,) = drawing.figure.axes
    (bars,) = axes.containers
    curve = bars.lines[0]
    assert [float(x) for x in curve.get_xdata()] == [0, 1, 2, 3]
    assert [float(y) for y in curve.get_ydata()] == [0.5, 0.6, 0.7, 0.65]
    (star,) = (line for line in axes.lines if line.get_marker() == "*")
    assert (star.get_xdata(), star.get_ydata()) == ([2], [0.7])
    assert "n = 30" in drawing.caption


def test_checkpoints_of_a_healing_have_no_curves_of_their_own(tmp_path: Path) -> None:
    """Their losses are the beginning of those of the whole training."""
    training = []
    for healing, kept_epoch in (("lora", 2), ("lora-1", 1), ("lora-7", 2)):
        row, _ = healed_rows("none", healing, kept_epoch, 0.5)
        training.append(row | {"loss": 1.0, "validation_loss": 0.9, "learning_rate": 0.1})
    plan = {"model": "m", "calibration": "c", "selector": "s", "removed": 2, "unit": "1"}
    write_tables(tmp_path, training=training, plans=[plan], models=[{"model": "m"}])
    figure = draw("training_curves", tmp_path).figure
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["c, 2 removed, lora", "c, 2 removed, lora-7"]

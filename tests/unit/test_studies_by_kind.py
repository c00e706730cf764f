"""What the figures of single kinds of studies are drawn from, against plain computations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from lamina.errors import LaminaError
from lamina.relevance.columns import Columns, Context
from lamina.relevance.stability import sizes, stability
from lamina.report import database
from lamina.report.figures import healed_curves, pruning_dynamics
from lamina.report.figures.angular_triangle import stretched
from lamina.study.load import load
from lamina.tables import answers
from tests.unit.configurations import REPOSITORY, Raw, minimal, put, workplace
from tests.unit.plausible_tables import write_tables

VIEWS = REPOSITORY / "sql/views.sql"
HUB: Raw = {"source": "org/model", "revision": "step{checkpoint}", "layers": 8, "checkpoints": [2000, "400-tokens1B"]}


def series(**changes: Any) -> Raw:
    """The hub's model trained to two steps, in the study of maps beside another one."""
    raw = put(minimal(), "models.trained", {**HUB, **changes})
    return put(raw, "studies.maps.models", ["trained", "small"])


def test_checkpoints_become_models_and_studies_follow(tmp_path: Path) -> None:
    config = load(series(), workplace(tmp_path))
    names = ["trained-2000", "trained-400-tokens1B"]
    assert config.studies["maps"].models == [*names, "small"]
    assert [config.models[name].revision for name in names] == ["step2000", "step400-tokens1B"]
    assert [(config.models[name].series, config.models[name].step) for name in names] == [
        ("trained", 2000),
        ("trained", 400),
    ]
    assert "trained" not in config.models
    assert load(config.plain(), tmp_path) == config


def test_checkpoints_of_a_folder_are_its_subfolders(tmp_path: Path) -> None:
    root = workplace(tmp_path)
    (root / "small").rename(root / "small-1")
    config = load(put(minimal(), "models.small", {"source": "small-{checkpoint}", "checkpoints": [1]}), root)
    assert config.models["small-1"].source == "small-1" and config.models["small-1"].layers == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoints": ["last"]}, "models.trained.checkpoints: 'last' holds no number"),
        ({"checkpoints": [5, "5b"]}, "models.trained.checkpoints: '5' and '5b' are both at 5"),
        ({"checkpoints": []}, "models.trained.checkpoints: [] is not allowed"),
        ({"checkpoints": ["a/1"]}, "models.trained.checkpoints"),
        ({"revision": "main"}, "models.trained.checkpoints: nothing says where they go. Write {checkpoint} in"),
        ({"checkpoints": None, "revision": "main", "step": 3}, "models.trained.series: is missing"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(changes: Raw, message: str, tmp_path: Path) -> None:
    with pytest.raises(LaminaError) as caught:
        load(series(**changes), workplace(tmp_path))
    assert str(caught.value).startswith(message)


def test_a_checkpoint_must_not_take_the_name_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="'trained-2000' is the name of a model already"):
        load(put(series(), "models.trained-2000", {"source": "org/other", "revision": "main"}), workplace(tmp_path))


def test_sizes_double_up_to_half_of_the_samples() -> None:
    assert [sizes(n) for n in (63, 64, 200, 256)] == [[], [32], [32, 64, 100], [32, 64, 128]]


def test_stability_is_the_correlation_of_two_halves() -> None:
    """With 64 samples a pair splits them: against scipy on the same splits, in plain loops."""
    rng = np.random.default_rng(1)
    losses = rng.exponential(size=(1, 64)) + np.vstack(
        [np.zeros(64), rng.normal(np.arange(6)[:, None] / 4, 1, (6, 64))]
    )
    columns = Columns(tuple("012345"), {"nll": losses, "n_tokens": np.ones((7, 64))}, np.full(7, 64))
    (found,) = stability(columns, "perplexity", Context(), seed=3)
    draws, plain = np.random.default_rng(3), []
    for _ in range(200):
        order = draws.permutation(64)
        first, second = (losses[1:, half].mean(1) - losses[0, half].mean() for half in (order[:32], order[32:]))
        plain.append(spearmanr(first, second).statistic)
    low, middle, high = np.percentile(plain, [2.5, 50, 97.5])
    assert (found.size, found.low, found.median, found.high) == pytest.approx((32, low, middle, high))
    assert 0 < found.low < found.high <= 1


def test_a_row_of_the_triangle_goes_from_its_least_to_its_largest() -> None:
    angle = np.array([[0.2, 0.4, 0.3], [0.5, 0.7, np.nan], [0.9, np.nan, np.nan]])
    expected = [[0, 1, 0.5], [0, 1, np.nan], [0, np.nan, np.nan]]
    np.testing.assert_allclose(stretched(angle), expected)


def proxy_tables(right: dict[tuple[str, str], np.ndarray]) -> dict[str, list[Raw]]:
    """Plans for a and b, on both tasks; `right` by (calibration, task), one number per document."""
    tables: dict[str, list[Raw]] = {"benchmarks": [], "benchmark_samples": [], "calibrations": [], "models": []}
    for name in ("a", "b"):
        told = dict(model="m", calibration=name, kind="choices", chance_accuracy=0.25, source=name)
        tables["calibrations"].append(told)
    for (calibration, task), values in right.items():
        none = dict(model="m", calibration=calibration, repair="none", healing="none", task=task, metric="acc")
        key = none | (dict(selector="none", removed=0) if calibration == "none" else dict(selector="s", removed=2))
        count = dict(n_samples=len(values), stderr=0.01, higher_is_better=True)
        tables["benchmarks"].append(key | count | dict(value=float(np.mean(values))))
        rows = [key | dict(sample=i, value=float(value)) for i, value in enumerate(values)]
        tables["benchmark_samples"] += rows
    return tables


def test_a_proxy_is_counted_from_chance_with_its_paired_error(tmp_path: Path) -> None:
    """Against the ratio itself, and a bootstrap over documents in which it is formed anew."""
    rng = np.random.default_rng(0)
    own = (rng.random(800) < 0.8).astype(float)
    other = np.where(rng.random(800) < 0.85, own, rng.random(800) < 0.3)
    right = {("a", "a"): own, ("b", "a"): other, ("b", "b"): own, ("a", "b"): (rng.random(800) < 0.26).astype(float)}
    right |= {("none", task): np.ones(800) for task in ("a", "b")}
    files = write_tables(tmp_path, **proxy_tables(right))
    found = {row["calibration"]: row for row in answers.rows(database.connect(VIEWS, files), "FROM proxies")}
    assert set(found) == {"a", "b"} and found["b"]["n_samples"] == 800
    assert found["b"]["kept_of_own"] == pytest.approx((other.mean() - 0.25) / (own.mean() - 0.25))
    drawn = rng.integers(0, 800, (4000, 800))
    ratios = (other[drawn].mean(1) - 0.25) / (own[drawn].mean(1) - 0.25)
    assert found["b"]["kept_of_own_stderr"] == pytest.approx(ratios.std(), rel=0.06)
    assert (found["a"]["proxy"], found["a"]["sure"]) == ("poor", True)
    assert found["b"]["proxy"] == "between" and found["b"]["own_calibration"] == "a"


def test_the_metric_of_a_selector_is_the_one_its_plan_repeats(tmp_path: Path) -> None:
    """Its sweeps hold several metrics; a plan made at once is left out, whose later steps were never scored."""
    plans, relevance = [], []
    for selector, score in (("greedy", [0.1, 0.3]), ("at_once", [0.1, 0.2])):
        for position, unit in enumerate(("1", "0"), start=1):
            key = dict(model="m", calibration="c", selector=selector, removed=2, accuracy_before=0.5)
            plans.append(key | dict(unit=unit, position=position, score=score[position - 1]))
    for selector, removed, layers in (("base", 0, "012"), ("greedy", 1, "02")):
        for layer in layers:
            row = dict(model="m", calibration="c", selector=selector, removed=removed, unit=layer, layer=int(layer))
            score = {"01": 0.1, "10": 0.3}.get(f"{removed}{layer}", 0.9)
            for metric, value in (("perplexity", score), ("accuracy", 0.5)):
                relevance.append(row | dict(metric=metric, score=value, component="layer", n_samples=9))
    told = dict(model="m", calibration="c", n_samples=9)
    files = write_tables(tmp_path, plans=plans, relevance=relevance, calibrations=[told], models=[dict(model="m")])
    rows = answers.answer(database.connect(VIEWS, files), *pruning_dynamics.QUERIES)
    assert {(row["selector"], row["metric"]) for row in rows} == {("greedy", "perplexity")}
    assert [(row["position"], row["unit"], row["score"], row["goes"]) for row in rows] == [
        (1, "0", 0.9, "1"),
        (1, "1", 0.1, "1"),
        (1, "2", 0.9, "1"),
        (2, "0", 0.3, "0"),
        (2, "2", 0.9, "0"),
    ]


def test_healed_curves_hold_the_loss_over_log_v_and_shares_of_the_layers(tmp_path: Path) -> None:
    rows: list[Raw] = []
    for healing, removed in (("none", 0), ("none", 3), ("lora", 3)):
        name = "none" if removed == 0 else "c"
        key = dict(model="m", calibration=name, selector="none" if removed == 0 else "s", removed=removed)
        told = key | dict(repair="none", healing=healing, task="text", n_samples=5, higher_is_better=False)
        rows += [
            told | dict(metric=metric, value=1.0, stderr=0.1) for metric in ("perplexity", "nll_per_log_vocabulary")
        ]
    files = write_tables(tmp_path, benchmarks=rows, models=[dict(model="m", n_layers=12)])
    found = answers.answer(database.connect(VIEWS, files), *healed_curves.QUERIES)
    assert {(row["metric"], row["share"], row["healing"]) for row in found} == {
        ("nll_per_log_vocabulary", 0.25, healing) for healing in ("none", "lora")
    }


def test_pruning_dynamics_shows_a_bound_as_a_bound() -> None:
    """A layer that a budget let leave early has no colour of a score, and a table without bounds none at all."""
    measured = {"layer": 0, "score": 0.25, "ci_low": 0.1, "ci_high": 0.4, "at_least": None}
    early = {"layer": 1, "score": None, "ci_low": None, "ci_high": None, "at_least": 0.41}
    axes = Figure().subplots()
    pruning_dynamics.heat(
        axes,
        [[measured, early, {"layer": 2, "score": None}, measured | {"layer": 3, "score": -10.25}]],
        "accuracy",
        Normalize(0, 1),
    )
    assert [text.get_text() for text in axes.texts] == [".25", "≥.41", "−10.25"]
    _, bound, undefined, _ = axes.patches
    assert bound.get_facecolor() == undefined.get_facecolor() and undefined.get_hatch() and not bound.get_hatch()

"""How metrics agree: against scipy and plain loops, and from the tables of a run."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from scipy import stats

from lamina.relevance import metric_agreement
from lamina.relevance.columns import Context, from_table
from lamina.relevance.dissociation import dissociations
from lamina.relevance.score import relevance
from lamina.relevance.stability import stability
from lamina.relevance.statistics import bootstrap_weights
from lamina.report import database
from lamina.report.figures import calibration_size
from lamina.stages.report import CompareMetrics
from lamina.store import parquet as store
from tests.given.plausible_tables import write_tables
from tests.given.scripts import started
from tests.report.test_database import VIEWS


def drawn(seed: int, tasks: int, units: int) -> list[np.ndarray]:
    """Scores with so little noise that measured and true ones are alike."""
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(1, units)) + 1e-3 * rng.normal(size=(201, units)) for _ in range(tasks)
    ]


def test_every_statistic_equals_an_independent_one() -> None:
    first, second = drawn(0, 3, 8), drawn(1, 3, 8)
    second = [a + b for a, b in zip(first, second, strict=True)]
    found = metric_agreement.compare(first, second, 10**6)
    pooled = [np.concatenate([scores[0] for scores in each]) for each in (first, second)]
    assert found.pearson and found.spearman
    assert found.pearson[0] == pytest.approx(stats.pearsonr(*pooled).statistic, abs=1e-3)
    assert found.spearman[0] == pytest.approx(stats.spearmanr(*pooled).statistic, abs=1e-3)
    pairs = (
        [np.concatenate([s[d] for s in each]) for each in (first, second)] for d in range(1, 201)
    )
    draws = [np.corrcoef(*pair)[0, 1] for pair in pairs]
    assert found.pearson[1:] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=2e-3)

    wrong, far = 0, 0
    for a, b in zip(first, second, strict=True):
        for unit in range(8):
            i, j = (sum(scores[0] < scores[0, unit]) for scores in (a, b))
            wrong, far = wrong + (i != j), far + (abs(i - j) > 2)
    assert found.misranked[0] == wrong / 24 and found.badly[0] == far / 24

    spread = []
    for each in (first, second):
        scores = np.array([task[0] for task in each])
        standard = (scores - scores.mean()) / scores.std()
        spread.append(
            [np.mean([(z - np.mean(column)) ** 2 for z in column]) for column in standard.T]
        )
    assert found.variance_ratio is not None
    assert found.variance_ratio[0] == pytest.approx(
        np.mean(spread[0]) / np.mean(spread[1]), rel=3e-3
    )
    assert found.p_value == pytest.approx(stats.wilcoxon(*spread).pvalue)


def test_a_metric_agrees_with_itself_and_one_task_has_no_variance() -> None:
    [scores] = drawn(2, 1, 6)
    found = metric_agreement.compare([scores], [scores], 50)
    assert found.pearson == found.spearman == (pytest.approx(1), pytest.approx(1), pytest.approx(1))
    assert found.misranked[:2] == found.badly[:2] == (0, 0)
    assert found.variance_ratio is None and found.p_value is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "clear"),
    [
        ([0, 0.03, 0.06, 0.09, 0.12, 0.15], [0, 0.03, 0.06, 0.09, 0.12, 0.15], False),
        ([0, 0, 0.05, 0.6, 1.2, 2], [0.05, 0, 0, 0.6, 2, 1.2], False),
        ([0, 1, 2, 3, 4, 5], [5, 3, 4, 1, 2, 0], True),
    ],
    ids=["nearly equal, same order", "some ties", "clear"],
)
def test_intervals_of_misranked_shares_hold_the_true_one(
    first: list[float], second: list[float], clear: bool
) -> None:
    """In 95 % of 60 studies of 150 samples. Those of bootstrapped orders would not, where neighbours are near."""
    places = [np.lexsort((-np.arange(6), truth)).argsort() for truth in (first, second)]
    apart = np.abs(places[0] - places[1])
    held, drawn_held = [], []
    for seed in range(60):
        rng, weights = np.random.default_rng(seed), bootstrap_weights(150, seed, 100)
        scores = [
            weights @ (np.array(truth) + rng.normal(size=(150, 6))) for truth in (first, second)
        ]
        found = metric_agreement.compare(*([each] for each in scores), 150)
        for (point, low, high), true in (
            (found.misranked, (apart > 0).mean()),
            (found.badly, (apart > 1.5).mean()),
        ):
            assert low <= point <= high and (low == high or not clear)
            held.append(low <= true <= high)
        orders = [each[1:].argsort(axis=1).argsort(axis=1) for each in scores]
        low, high = np.percentile((orders[0] != orders[1]).mean(axis=1), [2.5, 97.5])
        drawn_held.append(low <= (apart > 0).mean() <= high)
    assert np.mean(held) >= 0.95
    assert first[1] != 0.03 or np.mean(drawn_held) < 0.5


def test_equals_have_the_deeper_unit_first_in_both() -> None:
    one, other = np.array([[3.0, 1, 1, 1, 2]] * 3), np.array([[30.0, 10, 10, 10 + 1e-14, 20]] * 3)
    found = metric_agreement.compare([one], [other], 50)
    assert found.misranked[0] == 0
    tied = np.array([[3.0, 1, 1.5, 1, 2]] * 3)
    assert metric_agreement.compare([one], [tied], 50).misranked[0] == pytest.approx(2 / 5)


def test_tables_of_a_run_are_compared_without_the_outer_layers_and_what_is_at_chance(
    tmp_path: Path,
) -> None:
    """Two passes in one table; layers 2 to 5 of eight lose answers in the order of their numbers; one is unswept."""
    rng, rows = np.random.default_rng(3), []
    for task, base in (("good", 0.9), ("better", 0.95), ("guess", 0.5)):
        order = rng.random(100)
        for unit in ["none", *range(8)]:
            share = base if unit == "none" else base - 0.08 * int(unit)
            for sample in range(100):
                keys = {"model": "m", "calibration": task, "selector": "base", "removed": 0}
                keys |= {"unit": str(unit), "sample": sample}
                right = bool(order[sample] < share)
                rows.append(
                    keys | {"correct": right, "correct_norm": right, "nll": 1.0, "n_tokens": 1}
                )
                if unit != "none":
                    rows.append(
                        keys | {"taylor": 10.0 - int(unit) + 0.01 * rng.random(), "magnitude": 1.0}
                    )
    facts = [
        {
            "model": "m",
            "calibration": task,
            "n_samples": 100,
            "chance_accuracy": 0.5,
            "choice_score": "acc_norm",
        }
        for task in ("good", "better", "guess", "unswept")
    ]
    sweeps = store.from_rows("sweeps", rows)
    compared = metric_agreement.comparisons(facts, sweeps, "accuracy", ["taylor", "cosine"])
    [(model, kind, metric, names, found)] = compared
    assert (model, kind, metric, names) == ("m", "layer", "taylor", ["good", "better"])
    assert found.n_units == 4
    assert found.spearman[0] < -0.9 and found.misranked[0] == 1
    assert found.pearson[1] <= found.pearson[0] <= found.pearson[2] < 0
    tables = {"relevance": [{"metric": "taylor", "score": 1.0}], "calibrations": facts}
    for name, content in tables.items():
        store.write(tmp_path / f"{name}.parquet", store.from_rows(name, content))
    store.write(tmp_path / "sweeps.parquet", sweeps)
    names = ("relevance", "sweeps", "calibrations", "agreements")
    read, scored, drawn, output = (str(tmp_path / f"{name}.parquet") for name in names)
    done = started(CompareMetrics(relevance=read, sweeps=scored, calibrations=drawn, output=output))
    assert done.returncode == 0, done.stderr
    agreements = {
        row["statistic"]: row for row in store.read(tmp_path / "agreements.parquet").to_pylist()
    }
    assert agreements["spearman"]["value"] == found.spearman[0]
    assert agreements["spearman"]["calibrations"] == "good, better"
    assert [agreements["misranked"][key] for key in ("ci_low", "value", "ci_high")] == [1, 1, 1]
    assert (
        agreements["variance_ratio"]["p_value"] == found.p_value
        and agreements["pearson"]["n_samples"] == 200
    )


def test_scores_that_are_all_equal_have_no_correlation_and_give_no_rows() -> None:
    scores = drawn(0, 2, 6)
    found = metric_agreement.compare(scores, [np.ones((201, 6))] * 2, 50)
    assert found.pearson is found.spearman is found.variance_ratio is None


@pytest.mark.parametrize("score", ["acc", "acc_norm"])
def test_tables_agree_on_how_choices_are_compared(score: str, tmp_path: Path) -> None:
    """Answers by `acc` fall with the depth, by `acc_norm` they rise: every table of a run follows the calibration."""
    rng, rows = np.random.default_rng(0), []
    for task in ("one", "other"):
        order = rng.random(80)
        for unit in ["none", *range(6)]:
            lost = {"correct": 0.0, "correct_norm": 0.0}
            if unit != "none":
                lost = {"correct": 0.07 * int(unit), "correct_norm": 0.07 * (5 - int(unit))}
            for sample in range(80):
                keys = {
                    "model": "m",
                    "calibration": task,
                    "selector": "base",
                    "removed": 0,
                    "unit": str(unit),
                }
                answers = {name: bool(order[sample] < 0.95 - less) for name, less in lost.items()}
                turned = {} if unit == "none" else {"cosine": int(unit) / 10 + 0.01 * rng.random()}
                rows.append(keys | {"sample": sample, "nll": 1.0, "n_tokens": 1} | answers | turned)
    facts = [
        {
            "model": "m",
            "calibration": task,
            "n_samples": 80,
            "chance_accuracy": 0.25,
            "choice_score": score,
        }
        for task in ("one", "other")
    ]
    sweeps = store.from_rows("sweeps", rows)
    scored = [
        row | {"model": "m", "calibration": task, "selector": "base", "removed": 0}
        for task in ("one", "other")
        for row in relevance(
            sweeps.filter(pc.equal(sweeps["calibration"], task)),
            ["accuracy", "cosine"],
            Context(0.25, score),
            0,
        )
    ]
    accuracies = {
        (r["calibration"], r["unit"]): r["score"] for r in scored if r["metric"] == "accuracy"
    }
    rising = accuracies["one", "0"] < accuracies["one", "5"]
    assert rising == (score == "acc")
    [(*_, found)] = metric_agreement.comparisons(facts, sweeps, "accuracy", ["cosine"])
    assert found.spearman and (found.spearman[0] > 0.8) == rising
    for row in dissociations(facts, sweeps):
        expected = accuracies["one", row["unit"]] - accuracies["other", row["unit"]]
        assert row["difference"] == pytest.approx(expected)
    files = write_tables(tmp_path, relevance=scored, sweeps=sweeps.to_pylist(), calibrations=facts)
    drawn_from = calibration_size.read_rows(database.connect(VIEWS, files))
    columns, context = (
        from_table(sweeps.filter(pc.equal(sweeps["calibration"], "one"))),
        Context(0.25, score),
    )
    own = next(r for r in drawn_from if (r["calibration"], r["metric"]) == ("one", "accuracy"))
    assert own["median"] == pytest.approx(next(stability(columns, "accuracy", context))[1][0])

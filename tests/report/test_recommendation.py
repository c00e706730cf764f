"""Which model the report names: against plain loops, and on planted documents against numpy."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy.stats import norm

from lamina.store import parquet
from lamina_workflow.report import database, explorer, recommendation
from lamina_workflow.report.answers import query_rows, recommendations
from tests.given.planted_tables import (
    connect_planted_tables,
    extra_share_stderr,
    share_stderr,
    variant_key,
)

KEEP = 0.9
MAX_TEXT_RATIO = 1.8
RECIPE_KEYS = ("selector", "removed", "repair", "healing")


@pytest.fixture(scope="module")
def connection(two_models: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with database.connect_views(two_models.glob("*.parquet")) as views:
        yield views


def is_certain(row: dict[str, Any], n_tried: int, threshold: float) -> bool:
    """Whether the share kept is above the threshold, as the best of so many variants.

    The error is that of a share at the threshold.
    """
    lead = row["own_kept"] - threshold
    one_answer = 1 / (row["own_samples"] * row["own_base"])
    stderr = np.sqrt(row["own_kept_stderr"] ** 2 + max(lead, 0) * one_answer)
    return lead / stderr > norm.isf(0.025 / n_tried)


def select_variants(variants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The variants among which the report takes the one with the least damage to text."""
    enough = [
        row for row in variants if row["own_kept"] >= KEEP and row["text_ratio"] <= MAX_TEXT_RATIO
    ]
    n_removed = max((row["removed"] for row in enough), default=0)
    smallest = [row for row in enough if row["removed"] == n_removed]
    certain = [row for row in smallest if is_certain(row, len(variants), KEEP)]
    return certain or smallest


def test_the_recommended_model_is_the_smallest_that_keeps_enough(connection):
    cards = [
        card
        for card in recommendations(connection, KEEP, MAX_TEXT_RATIO)
        if card["question"] == "task"
    ]

    variants = explorer.list_variants(connection)
    assert len(cards) == 4
    for card in cards:
        key = (card["model"], card["name"])
        tried = [row for row in variants if (row["model"], row["calibration"]) == key]
        selected = select_variants(tried)
        assert card["kept_enough"] == bool(selected)
        if selected:
            text_ratio = min(row["text_ratio"] for row in selected)
            assert card["removed"] == selected[0]["removed"]
            assert card["text_ratio"] == pytest.approx(text_ratio)
            name = f"{key[0]}/{key[1]}/{card['selector']}/removed={card['removed']}/"
            assert card["variants"][0].startswith(name)
        else:
            assert card["kept"] == max(row["own_kept"] for row in tried)


def test_a_recipe_is_a_mean_over_all_tasks(connection):
    [recipe] = [
        card
        for card in recommendations(connection, 0.5, None)
        if (card["model"], card["question"]) == ("a", "recipe")
    ]

    recipe_key = {"model": "a"} | {key: recipe[key] for key in RECIPE_KEYS}
    variants = [
        row for row in explorer.list_variants(connection) if recipe_key.items() <= row.items()
    ]
    lucks = {
        row["calibration"]: row["kept_luck"]
        for row in query_rows(connection, "FROM kept_means WHERE tasks_of = 'own'")
        if recipe_key.items() <= row.items()
    }
    kept = np.array([row["own_kept"] for row in variants])
    luck = np.array([lucks[row["calibration"]] for row in variants])
    stderr = np.array([row["own_kept_stderr"] for row in variants]) - luck
    assert recipe["n_tasks"] == len(variants) == 2
    assert recipe["kept"] == pytest.approx(kept.mean())
    assert recipe["kept_stderr"] == pytest.approx(np.hypot(*stderr) / 2 + luck.mean())


HEALED_AND_REPAIRED = variant_key("c", repair="kept") | dict(healing="lora")
REPAIRED = variant_key("c", repair="kept")
HEALED = variant_key("c") | dict(healing="lora")
BARE = variant_key("c")


@pytest.mark.parametrize(
    ("variants", "least"),
    [
        ([HEALED_AND_REPAIRED, REPAIRED, HEALED, BARE], BARE),
        ([HEALED_AND_REPAIRED, REPAIRED], REPAIRED),
    ],
)
def test_of_equals_the_one_with_less_done_to_it_is_recommended(tmp_path, variants, least):
    """A healing of which no step was better is what it began from, to the last document."""
    rng = np.random.default_rng(0)
    base = (rng.random(300) < 0.9).astype(float)
    pruned = base * (rng.random(300) < 0.97)
    measured = [(key, {"t": pruned}) for key in variants]
    run = connect_planted_tables(
        tmp_path, {"t": base}, measured, [dict(calibration="c", source="t")]
    )

    [card] = recommendations(run, KEEP, None)

    assert card["repair"] == least["repair"]
    assert card["healing"] == least["healing"]
    assert card["n_tried"] == len(variants)


@pytest.mark.parametrize(("counted_from", "removed"), [("zero", 2), ("chance", 1)])
def test_the_share_may_be_counted_from_chance(tmp_path, counted_from, removed):
    """Without two layers the model keeps 94 % of its accuracy and 91 % of what is above chance.

    Without one layer it keeps 97 % and 96 %.
    """
    rng = np.random.default_rng(1)
    base = (rng.random(2000) < 0.9).astype(float)
    pruned = {
        1: base * (rng.random(2000) < 0.985),
        2: base * (rng.random(2000) < 0.94),
    }
    variants = [(variant_key("c", removed=size), {"t": right}) for size, right in pruned.items()]
    run = connect_planted_tables(
        tmp_path, {"t": base}, variants, [dict(calibration="c", source="t")]
    )

    [card] = recommendations(run, 0.93, None, counted_from)

    accuracy = pruned[removed].mean()
    kept = accuracy / base.mean()
    kept_above_chance = (accuracy - 0.25) / (base.mean() - 0.25)
    assert card["removed"] == removed
    assert card["kept_enough"]
    assert card["kept"] == pytest.approx(kept)
    assert card["kept_above_chance"] == pytest.approx(kept_above_chance)
    shares = {"zero": kept, "chance": kept_above_chance}
    assert card["share"] == pytest.approx(shares[counted_from])


@pytest.mark.parametrize(("n_others", "certain"), [(0, True), (34, False)])
def test_what_is_certain_of_one_is_not_of_the_best_of_many(tmp_path, n_others, certain):
    """Alone and among 35: the threshold moves from 1.96 standard errors to 3.19."""
    rng = np.random.default_rng(2)
    base = (rng.random(800) < 0.95).astype(float)
    best = base.copy()
    best[np.flatnonzero(base)[:20]] = 0.0  # 20 of 760 right answers lost, 2.6 %
    worse = base * (rng.random(800) < 0.9)
    variants = [(variant_key("c"), {"t": best})]
    for index in range(n_others):
        variants.append((variant_key("c", f"s{index}"), {"t": worse}))
    run = connect_planted_tables(
        tmp_path, {"t": base}, variants, [dict(calibration="c", source="t")]
    )

    [card] = recommendations(run, 0.95, None)

    n_right = base.sum()
    lead = 1 - 20 / n_right - 0.95
    stderr = share_stderr(best, base) + extra_share_stderr(best, base)
    n_stderrs = lead / np.sqrt(stderr**2 + lead / n_right)
    assert card["selector"] == "s"
    assert card["n_tried"] == 1 + n_others
    assert card["kept_stderr"] == pytest.approx(stderr)
    assert (n_stderrs > norm.isf(0.025 / card["n_tried"])) == certain
    assert card["certain"] is certain
    n_needed = 800 * norm.isf(0.025 / card["n_tried"]) ** 2 / n_stderrs**2
    assert card["n_needed"] == pytest.approx(n_needed, rel=1e-3)
    verdict = recommendation.judge(card, 0.95, None)
    assert verdict.is_significant is certain
    assert ("cannot decide" in verdict.text) is not certain


def verdict_on(tmp_path: Path, n_lost: int, n_documents: int, keep: float) -> str:
    """The verdict on one variant that answers so many of the base model's right answers wrongly."""
    rng = np.random.default_rng(3)
    base = (rng.random(n_documents) < 0.9).astype(float)
    pruned = base.copy()
    pruned[np.flatnonzero(base)[:n_lost]] = 0.0
    run = connect_planted_tables(
        tmp_path,
        {"t": base},
        [(variant_key("c"), {"t": pruned})],
        [dict(calibration="c", source="t")],
    )
    [card] = recommendations(run, keep, None)
    return recommendation.judge(card, keep, None).text


def test_a_verdict_says_how_many_questions_would_decide(tmp_path: Path) -> None:
    """With so many questions, and as many of them lost, the verdict is another one."""
    few = verdict_on(tmp_path / "few", n_lost=2, n_documents=100, keep=0.95)

    advice = re.search(r"100 test questions cannot decide .* about ([\d,]+) would", few)
    assert advice
    factor = int(advice[1].replace(",", "")) * 1.2 / 100
    enough = verdict_on(tmp_path / "enough", round(2 * factor), round(100 * factor), keep=0.95)
    assert "show that it keeps at least 95 %" in enough


def test_a_variant_that_keeps_significantly_less_is_said_to(tmp_path: Path) -> None:
    assert "show that it keeps less than 95 %" in verdict_on(tmp_path, 150, 400, 0.95)


def test_a_ruined_text_is_not_made_up_for_by_one_that_was_helped(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    answers = (rng.random(300) < 0.9).astype(float)
    losses = rng.normal(2.0, 0.1, 80)
    base = {"t": answers, "text_a": losses, "text_b": losses}
    pruned = {"t": answers, "text_a": losses - 0.5, "text_b": losses + 0.5}
    run = connect_planted_tables(
        tmp_path, base, [(variant_key("c"), pruned)], [dict(calibration="c", source="t")]
    )

    [card] = recommendations(run, 0.95, 1.25)

    assert card["text_ratio"] == pytest.approx(np.exp(0.5))
    assert not card["kept_enough"]
    assert "perplexity of general text is 1.65 times" in recommendation.judge(card, 0.95, 1.25).text


def test_sizes_are_counted_from_layers_and_patches(tmp_path: Path) -> None:
    """Of twelve layers, two lose their MLP and one goes whole; a patch adds 4,096 parameters."""
    answers = np.ones(50)
    layer_sizes = [
        {
            "model": "m",
            "layer": layer,
            "attention_parameters": 1_000,
            "mlp_parameters": 8_000,
            "other_parameters": 10,
            "active_mlp_parameters": 2_000,
            "kind": layer % 2,
        }
        for layer in range(12)
    ]
    plan = {"model": "m", "calibration": "c", "selector": "s", "removed": 1}
    units = [{**plan, "unit": unit, "position": 1} for unit in ("3.mlp", "5", "7.mlp")]
    key = variant_key("c", repair="ghost")
    connect_planted_tables(
        tmp_path,
        {"t": answers},
        [(key, {"t": answers})],
        [dict(calibration="c", source="t")],
        layer_sizes=layer_sizes,
        plans=units,
        patches=[{**key, "boundary": "5-6", "parameters": 4_096}],
    ).close()
    model = {
        "model": "m",
        "n_layers": 12,
        "parameters": 150_000,
        "weights_bytes": 300_000,
        "head_parameters": 20_000,
        "decoder": "gemma3_text",
        "runs_code_in_vllm": True,
    }
    parquet.write_table(tmp_path / "models.parquet", parquet.from_rows("models", [model]))
    with database.connect_views(tmp_path.glob("*.parquet")) as connection:
        [sizes] = query_rows(connection, "FROM variant_sizes WHERE removed > 0")
        runtimes = recommendation.find_runtimes(connection, ["none"])

    n_parameters = 150_000 - 9_010 - 2 * 8_000 + 4_096
    n_read = 20_000 + 12 * 3_010
    assert sizes["parameters"] == n_parameters
    assert sizes["weights_bytes"] == 2 * n_parameters
    assert sizes["base_parameters"] == 150_000
    assert sizes["estimated_speed_ratio"] == pytest.approx(
        n_read / (n_read - 3_010 - 2 * 2_000 + 4_096)
    )
    assert sizes["tokens_per_second"] is None
    assert runtimes == {"m/c/s/removed=1/ghost/none": ("vllm",)}


@pytest.mark.parametrize(
    ("units", "runtimes"),
    [
        (["11"], ("transformers", "vllm", "llama.cpp")),
        (["3"], ("transformers", "vllm")),
        (["11", "2<>3"], ("transformers", "vllm")),
        (["11", "2<>4"], ("transformers", "vllm", "llama.cpp")),
        (["11", "10", "4x2"], ("transformers", "vllm")),
        (["11", "10", "4x2~"], ("vllm",)),
        (["11", "4.attention", "4.mlp"], ("transformers", "vllm")),
    ],
)
def test_where_an_export_loads_follows_the_layers_that_run(
    tmp_path: Path, units: list[str], runtimes: tuple[str, ...]
) -> None:
    """Gemma 3 alternates two kinds of layers by their index."""
    plan = {"model": "m", "calibration": "c", "selector": "s", "removed": 1}
    plans = [{**plan, "unit": unit, "position": place} for place, unit in enumerate(units, 1)]
    layer_sizes = [{"model": "m", "layer": layer, "kind": layer % 2} for layer in range(12)]
    model = {"model": "m", "n_layers": 12, "decoder": "gemma3_text", "runs_code_in_vllm": True}
    answers = {"t": np.arange(40) < 30}
    connect_planted_tables(
        tmp_path,
        answers,
        [(variant_key("c"), answers)],
        [{"calibration": "c", "source": "t"}],
        layer_sizes=layer_sizes,
        plans=plans,
    ).close()
    parquet.write_table(tmp_path / "models.parquet", parquet.from_rows("models", [model]))

    with database.connect_views(tmp_path.glob("*.parquet")) as connection:
        found = recommendation.find_runtimes(connection, ["none"])

    assert found == {"m/c/s/removed=1/none/none": runtimes}

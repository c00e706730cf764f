"""Repairs that hurt on documents that they were not fitted on: against models really cut and repaired."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student
from transformers import AutoModelForCausalLM, AutoTokenizer

import lamina
from lamina.config import repairs
from lamina.data import calibrations, encoding, lm_tasks
from lamina.data.calibrations import Calibration
from lamina.engine.sources import Source, split
from lamina.errors import LaminaError
from lamina.models.materialise import materialise
from lamina.repair import fitting, protocol
from lamina.report import database
from lamina.report.answers import rows as rows_of
from lamina.report.cautions import list_harmful_repairs
from lamina.store import parquet as store
from lamina.study import paths
from tests import ROOT
from tests.engine.test_sweep import naive
from tests.families.test_families import plan_of
from tests.given.plausible_tables import VIEWS
from tests.repair.test_repairs import PRUNED, fitted, logits
from tests.repair.test_repairs import results as results  # a fixture
from tests.report.conftest import two_models as two_models  # a fixture

REFERENCE = ROOT / "resources/reference"
OWN, OTHER = "sorting", "addition"


@pytest.fixture(scope="module")
def read() -> tuple[Any, dict[str, Calibration]]:
    """The embedded model, and questions of two of its tasks."""
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    recorder = encoding.recorder(model, AutoTokenizer.from_pretrained(REFERENCE))
    tasks = {
        name: lm_tasks.task_object(f"microworld_{name}", ROOT, split="train")
        for name in (OWN, OTHER)
    }
    samples = {name: lm_tasks.task_samples(task, recorder, 60, 0) for name, task in tasks.items()}
    return model, {
        name: calibrations.build(part, model.config.vocab_size) for name, part in samples.items()
    }


@pytest.mark.parametrize("method", ["ghost", "replaceme"])
@pytest.mark.parametrize("harmful", [False, True])
def test_a_repair_hurts_where_the_cut_model_with_it_loses_surely_more(
    read: Any, method: str, harmful: bool
) -> None:
    """A helpful one is fitted on the task itself, a harmful one on another."""
    model, told = read
    options, weights = repairs.Repair.from_options({"method": method}), [(OWN, 1.0), (OTHER, 1e-9)]
    weights = [(OWN, 1e-9), (OTHER, 1.0)] if harmful else weights
    request = fitting.request([plan_of(["5"]), plan_of(["3", "6"])], 12, options)
    groups = fitting.fit(model, request, told, weights, 0)
    found = {size: columns for _, _, chosen in groups for size, columns in chosen.items()}

    sources = [Source(told[name].sequences(), weight) for name, weight in weights]
    flags = split(sources, 0)[0]
    held = [sample for sample, out in zip(told[OWN].samples, flags, strict=True) if out]
    tokens = np.array([len(sample.rows[sample.gold].continuation) for sample in held])
    gold = np.cumsum([0, *(len(sample.rows) for sample in held)])[:-1] + [
        sample.gold for sample in held
    ]
    chosen_method = protocol.method(method)
    collected = chosen_method.collect(model, sources, [(3, 4), (5, 6), (6, 7)], options, 0)
    made = {
        at: protocol.Fitted(method, chosen_method.fit(sums, options).validated)
        for at, sums in collected
    }
    for size, runs in ((1, [(5, 6)]), (2, [(3, 4), (6, 7)])):
        plan = plan_of([str(start) for start, _ in runs])
        bare, mended = (
            -naive(materialise(model, plan, part), held, [])[gold]
            for part in (None, {run: made[run] for run in runs})
        )
        row, difference = found[size], (mended - bare).sum() / tokens.sum()
        residuals = mended - bare - difference * tokens
        error = residuals.std(ddof=1) * len(held) ** 0.5 / tokens.sum()
        assert row["loss_bare"] == pytest.approx(bare.sum() / tokens.sum(), rel=1e-3)
        assert row["loss_repaired"] == pytest.approx(
            mended.sum() / tokens.sum(), rel=1e-3, abs=1e-4
        )
        assert (row["n_loss"], row["loss_stderr"]) == (12, pytest.approx(error, rel=1e-2))
        assert row["hurts"] == (difference > student.ppf(0.975, 11) * error)
    assert found[2]["hurts"] == harmful


def test_copies_of_a_document_count_once_and_one_document_is_never_sure() -> None:
    bare, mended = np.array([[1.0, 2], [1, 2], [3, 4]]), np.array([[2.0, 2], [2, 2], [5, 4]])
    assert fitting.compared(bare, mended, [0, 0, 1])["n_loss"] == 2
    alone = fitting.compared(bare, mended, [0, 0, 0])
    assert (alone["loss_stderr"], alone["hurts"]) == (None, False)


def test_a_plan_that_was_chosen_with_its_repair_is_not_tested_again(results: Path) -> None:
    plan = paths.plan(PRUNED.key, 2, results)
    store.write_text(plan, json.dumps(plan_of(["2", "4"]) | {"choice": {"repair": "none"}}))
    rows = fitted(results, "patched", method="ghost")
    assert [row["n_loss"] for row in rows] == [6, None, None]


def test_without_its_name_the_repair_is_loaded_that_lowers_the_loss(results: Path) -> None:
    """`none` where none does, and by its name any."""
    rows = {
        name: fitted(results, name, method="ghost", ridge=ridge)
        for name, ridge in (("one", 1e-9), ("two", 1.0))
    }
    gains = {name: of[0]["loss_repaired"] - of[0]["loss_bare"] for name, of in rows.items()}
    best = min(gains, key=gains.__getitem__)
    assert gains[best] < 0

    def loaded(name: str) -> Any:
        return logits(lamina.load(f"{PRUNED.key}/removed=1{name}", results, device="cpu")[0])

    bare = loaded("/none/none")
    assert (loaded("") == loaded(f"/{best}/none")).all() and not (loaded("") == bare).all()
    for name, of in rows.items():
        hurting = [row | {"loss_repaired": row["loss_bare"] + 1, "hurts": True} for row in of]
        store.write(
            paths.patch_table(PRUNED.key, name, results), store.from_rows("patches", hurting)
        )
    assert (loaded("") == bare).all() and not (loaded(f"/{best}/none") == bare).all()
    store.write_text(
        paths.plan(PRUNED.key, 1, results),
        json.dumps(plan_of(["2"]) | {"choice": {"repair": best}}),
    )
    assert (loaded("") == loaded(f"/{best}/none")).all()
    with pytest.raises(LaminaError, match="has not been made"):
        loaded("0")


def test_the_report_recommends_no_repair_that_hurts(two_models: Path, tmp_path: Path) -> None:
    def answered(hurting: list[int]) -> tuple[dict[Any, Any], list[str]]:
        rows = store.read(two_models / "patches.parquet").to_pylist()
        for row in rows:
            row |= {"loss_bare": 1.0, "loss_repaired": 1.5, "n_loss": 20}
            row["hurts"] = row["removed"] in hurting and row["calibration"] == "facts"
        store.write(tmp_path / "patches.parquet", store.from_rows("patches", rows))
        others = [file for file in two_models.glob("*.parquet") if file.stem != "patches"]
        connection = database.connect(VIEWS, [*others, tmp_path / "patches.parquet"])
        asked = "SELECT question, name, removed, variants FROM answers WHERE model = 'a' AND selector = 'cosine' AND "
        found = rows_of(connection, asked + "repair = 'ghost' AND healing = 'none'")
        told = {
            (row["question"], row["removed"], *places(row["variants"])): row["variants"]
            for row in found
        }
        return told, [
            sentence for sentence in list_harmful_repairs(connection) if "held-out" in sentence
        ]

    def places(variants: list[str]) -> list[str]:
        return [variant.split("/")[1] for variant in variants]

    (before, said), (after, told) = answered([]), answered([2])
    assert (
        before.keys() - after.keys() == {("task", 2, "facts"), ("model", 2, "facts")} and not said
    )
    assert {
        place: after[place] for place in after if place[0] != "recipe"
    }.items() <= before.items()
    assert len(told) == 1 and told[0].startswith(
        "A repair hurt on held-out documents of its calibration, and none is"
    )
    assert "(1 to 1.5 nats per token, n = 20)" in told[0]
    # A recipe takes none in its place.
    assert after["recipe", 1, "facts", "recall"] == before["recipe", 1, "facts", "recall"]
    repaired = {
        variant.split("/")[1]: variant.split("/")[4]
        for variant in after["recipe", 2, "facts", "recall"]
    }
    assert repaired == {"recall": "ghost", "facts": "none"}

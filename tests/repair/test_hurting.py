"""Repairs that hurt on documents that they were not fitted on: against models really cut and repaired."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from transformers import AutoModelForCausalLM, AutoTokenizer

import lamina
from lamina import paths
from lamina.data import calibrations, encoding, lm_tasks
from lamina.data.calibrations import CalibrationSamples
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source, draw_held_out
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options import repairs
from lamina.repair import fitting, harm, protocol
from lamina.repair.protocol import Fit
from lamina.store import parquet
from lamina_workflow.report import database
from lamina_workflow.report.answers import query_rows as rows_of
from lamina_workflow.report.cautions import list_harmful_repairs
from tests import ROOT
from tests.engine.test_sweep import naive
from tests.families.test_families import plan_of
from tests.given import tiny
from tests.given.plausible_tables import VIEWS
from tests.repair.test_repairs import PRUNED, fitted, logits
from tests.repair.test_repairs import results as results  # a fixture
from tests.report.conftest import two_models as two_models  # a fixture

REFERENCE = ROOT / "resources/reference"
OWN, OTHER = "sorting", "addition"


@pytest.fixture(scope="module")
def read() -> tuple[Any, dict[str, CalibrationSamples]]:
    """The embedded model, and questions of two of its tasks."""
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    recorder = encoding.open_encoder(model, AutoTokenizer.from_pretrained(REFERENCE))
    tasks = {
        name: lm_tasks.task_object(f"microworld_{name}", ROOT, split="train")
        for name in (OWN, OTHER)
    }
    samples = {name: lm_tasks.task_samples(task, recorder, 60, 0) for name, task in tasks.items()}
    return model, {
        name: calibrations.build_calibration(part, model.config.vocab_size)
        for name, part in samples.items()
    }


@pytest.mark.parametrize("method", ["ghost", "replaceme"])
@pytest.mark.parametrize("harmful", [False, True])
def test_a_repair_hurts_where_the_cut_model_with_it_loses_significantly_more(
    read: Any, method: str, harmful: bool
) -> None:
    """A helpful one is fitted on the task itself, a harmful one on another."""
    model, calibrations_by_name = read
    options = repairs.Repair.from_options({"method": method})
    weights = [(OWN, 1.0), (OTHER, 1e-9)]
    if harmful:
        weights = [(OWN, 1e-9), (OTHER, 1.0)]
    request = fitting.sort_plans([plan_of(["5"]), plan_of(["3", "6"])], 12, options)
    (group,) = fitting.fit_plans(model, request, calibrations_by_name, weights, 0)

    sources = [Source(calibrations_by_name[name].sequences(), weight) for name, weight in weights]
    is_heldout = draw_held_out(sources, 0)[0]
    own_samples = calibrations_by_name[OWN].samples
    heldout_samples = [sample for sample, flag in zip(own_samples, is_heldout, strict=True) if flag]
    n_tokens = np.array([len(sample.rows[sample.gold].continuation) for sample in heldout_samples])
    first_rows = np.cumsum([0, *(len(sample.rows) for sample in heldout_samples)])[:-1]
    gold_rows = first_rows + [sample.gold for sample in heldout_samples]

    def gold_losses(plan: dict[str, Any], patches: Any) -> np.ndarray:
        """Losses of the right answers under a model that is really cut and repaired."""
        return -naive(materialise(model, plan, patches), heldout_samples, [])[gold_rows]

    repair = protocol.load_method(method)
    collected = repair.collect(model, sources, [(3, 4), (5, 6), (6, 7)], options, 0)
    fitted_by_boundary = {
        boundary: protocol.Fitted(method, repair.fit(statistics, options).validated)
        for boundary, statistics in collected
    }
    for size, boundaries in ((1, [(5, 6)]), (2, [(3, 4), (6, 7)])):
        plan = plan_of([str(start) for start, _ in boundaries])
        bare = gold_losses(plan, None)
        repaired = gold_losses(plan, {run: fitted_by_boundary[run] for run in boundaries})
        difference = (repaired - bare).sum() / n_tokens.sum()
        residuals = repaired - bare - difference * n_tokens
        stderr = residuals.std(ddof=1) * len(heldout_samples) ** 0.5 / n_tokens.sum()

        columns = group.plan_columns[size]
        loss_bare = bare.sum() / n_tokens.sum()
        loss_repaired = repaired.sum() / n_tokens.sum()
        assert columns["loss_bare"] == pytest.approx(loss_bare, rel=1e-3)
        assert columns["loss_repaired"] == pytest.approx(loss_repaired, rel=1e-3, abs=1e-4)
        assert columns["n_loss"] == 12
        assert columns["loss_stderr"] == pytest.approx(stderr, rel=1e-2)
        assert columns["hurts"] == (difference > student.ppf(0.975, 11) * stderr)
    assert group.plan_columns[2]["hurts"] == harmful


def test_copies_of_a_document_count_once_and_one_document_is_never_significant() -> None:
    bare = np.array([[1.0, 2], [1, 2], [3, 4]])
    repaired = np.array([[2.0, 2], [2, 2], [5, 4]])
    assert harm.compare_losses(bare, repaired, [0, 0, 1])["n_loss"] == 2
    single = harm.compare_losses(bare, repaired, [0, 0, 0])
    assert single["loss_stderr"] is None
    assert not single["hurts"]


def test_plans_with_a_common_run_share_its_stream() -> None:
    """Comparing two plans costs what their models cost in one pass, each run repaired once."""
    model = tiny.model()
    samples = tiny.samples(tiny.tokens(rows=6).tolist())
    patches = {run: Patch(torch.eye(32) / 50) for run in ((1, 2), (3, 4))}
    fits = {run: Fit(patch.tensors, patch.tensors, {}) for run, patch in patches.items()}
    plans = [plan_of(["1"]), plan_of(["1", "3"])]
    boundaries: dict[int, list[Boundary]] = {1: [(1, 2)], 2: [(1, 2), (3, 4)]}

    sizes_in_mlp: list[int] = []
    layers_of(model)[2].mlp.register_forward_hook(
        lambda module, args, output: sizes_in_mlp.append(output.numel())
    )

    def measured_size(measure: Callable[[], Any]) -> int:
        """How many numbers leave the MLP after the common run."""
        sizes_in_mlp.clear()
        measure()
        return sum(sizes_in_mlp)

    first = patches[1, 2]
    candidates = {
        "first": Candidate(frozenset({"1"})),
        "first, repaired": Candidate(frozenset({"1"}), {(1, 2): first}),
        "both": Candidate(frozenset({"1", "3"})),
        "both, repaired": Candidate(frozenset({"1", "3"}), patches),
    }
    # The engine proves itself on a model once, so that the proof is in neither count.
    harm.measure_losses(model, samples, {"unpruned": Candidate()})
    expected = measured_size(lambda: harm.measure_losses(model, samples, candidates))
    assert (
        0
        < expected
        == measured_size(
            lambda: harm.measure_harm(model, "ghost", plans, boundaries, samples, fits)
        )
    )


def test_a_plan_that_was_chosen_with_its_repair_is_not_tested_again(results: Path) -> None:
    plan = paths.plan(PRUNED.key, 2, results)
    parquet.write_text(plan, json.dumps(plan_of(["2", "4"]) | {"choice": {"repair": "none"}}))
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
        parquet.write_table(
            paths.patch_table(PRUNED.key, name, results), parquet.from_rows("patches", hurting)
        )
    assert (loaded("") == bare).all() and not (loaded(f"/{best}/none") == bare).all()
    parquet.write_text(
        paths.plan(PRUNED.key, 1, results),
        json.dumps(plan_of(["2"]) | {"choice": {"repair": best}}),
    )
    assert (loaded("") == loaded(f"/{best}/none")).all()
    with pytest.raises(LaminaError, match="has not been made"):
        loaded("0")


def test_the_report_recommends_no_repair_that_hurts(two_models: Path, tmp_path: Path) -> None:
    def answered(hurting: list[int]) -> tuple[dict[Any, Any], list[str]]:
        rows = parquet.read_table(two_models / "patches.parquet").to_pylist()
        for row in rows:
            row |= {"loss_bare": 1.0, "loss_repaired": 1.5, "n_loss": 20}
            row["hurts"] = row["removed"] in hurting and row["calibration"] == "facts"
        parquet.write_table(tmp_path / "patches.parquet", parquet.from_rows("patches", rows))
        others = [file for file in two_models.glob("*.parquet") if file.stem != "patches"]
        connection = database.connect_views(VIEWS, [*others, tmp_path / "patches.parquet"])
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

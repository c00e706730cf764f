"""Repairs that hurt on held-out documents: against models really cut and repaired.

A repair hurts if the loss rises significantly, by a t-test on documents with shared tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import lamina
from lamina import paths
from lamina.data import encoding, lm_tasks
from lamina.data.calibrations import CalibrationSamples, Sample, build_calibration
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source, draw_held_out
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options.repairs import Repair
from lamina.repairs import fitting, harm, protocol
from lamina.repairs.protocol import Fit, Fitted
from lamina.store import parquet
from lamina_workflow.report import database
from lamina_workflow.report.answers import query_rows
from lamina_workflow.report.cautions import list_harmful_repairs
from tests import ROOT
from tests.given import tiny
from tests.given.cut_models import naive_gold_losses
from tests.given.repairs import PRUNED, fit_repair, logits_of, plan_of

REFERENCE = ROOT / "resources/reference"
OWN_TASK = "sorting"
OTHER_TASK = "addition"
RUNS_BY_SIZE: dict[int, list[Boundary]] = {1: [(5, 6)], 2: [(3, 4), (6, 7)]}


@dataclass(frozen=True)
class Material:
    """The embedded model, and questions of two of its tasks."""

    model: PreTrainedModel
    calibrations: Mapping[str, CalibrationSamples]


@pytest.fixture(scope="module")
def material() -> Material:
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    encoder = encoding.open_encoder(model, AutoTokenizer.from_pretrained(REFERENCE))
    calibrations: dict[str, CalibrationSamples] = {}
    for name in (OWN_TASK, OTHER_TASK):
        task = lm_tasks.task_object(f"microworld_{name}", ROOT, split="train")
        samples = lm_tasks.task_samples(task, encoder, 60, 0)
        calibrations[name] = build_calibration(samples, model.config.vocab_size)
    return Material(model, calibrations)


@dataclass(frozen=True)
class ExpectedHarm:
    """Nats per token of a cut model, bare and repaired, and the error of their difference."""

    loss_bare: float
    loss_repaired: float
    stderr: float


def expect_harm(
    material: Material,
    runs: list[Boundary],
    patches: Mapping[Boundary, Fitted],
    samples: list[Sample],
) -> ExpectedHarm:
    """The standard error is that of a ratio: of differences to tokens, over documents."""
    plan = plan_of([str(start) for start, _ in runs])
    run_patches = {run: patches[run] for run in runs}
    bare = naive_gold_losses(materialise(material.model, plan, None), samples)
    repaired = naive_gold_losses(materialise(material.model, plan, run_patches), samples)
    n_tokens = np.array([len(sample.rows[sample.gold].continuation) for sample in samples])
    difference = (repaired - bare).sum() / n_tokens.sum()
    residuals = repaired - bare - difference * n_tokens
    stderr = residuals.std(ddof=1) * len(samples) ** 0.5 / n_tokens.sum()
    return ExpectedHarm(bare.sum() / n_tokens.sum(), repaired.sum() / n_tokens.sum(), stderr)


@pytest.mark.parametrize("method", ["ghost", "replaceme"])
@pytest.mark.parametrize("fitted_task", [OWN_TASK, OTHER_TASK])
def test_a_repair_hurts_where_the_cut_model_with_it_loses_significantly_more(
    material: Material, method: str, fitted_task: str
) -> None:
    """One that is fitted on the task itself helps, one that is fitted on another task hurts."""
    options = Repair.from_options({"method": method})
    weight_by_task = {OWN_TASK: 1e-9, OTHER_TASK: 1e-9, fitted_task: 1.0}
    weights = list(weight_by_task.items())
    plans = [plan_of(["5"]), plan_of(["3", "6"])]
    request = fitting.sort_plans(plans, 12, options)

    (group,) = fitting.fit_plans(material.model, request, material.calibrations, weights, 0)

    sources = [Source(material.calibrations[task].sequences(), weight) for task, weight in weights]
    is_heldout, _ = draw_held_out(sources, 0)
    own_samples = material.calibrations[OWN_TASK].samples
    heldout_samples = [sample for sample, flag in zip(own_samples, is_heldout, strict=True) if flag]
    repair = protocol.load_method(method)
    runs = [(3, 4), (5, 6), (6, 7)]
    patches: dict[Boundary, Fitted] = {}
    for run, statistics in repair.collect(material.model, sources, runs, options, 0):
        patches[run] = Fitted(method, repair.fit(statistics, options).validated)
    for size, runs_of_size in RUNS_BY_SIZE.items():
        expected = expect_harm(material, runs_of_size, patches, heldout_samples)
        columns = group.plan_columns[size]
        assert columns["loss_bare"] == pytest.approx(expected.loss_bare, rel=1e-3)
        assert columns["loss_repaired"] == pytest.approx(expected.loss_repaired, rel=1e-3, abs=1e-4)
        assert columns["loss_stderr"] == pytest.approx(expected.stderr, rel=1e-2)
        assert columns["n_loss"] == len(heldout_samples) == 12
        difference = expected.loss_repaired - expected.loss_bare
        is_significant = difference > stats.t.ppf(0.975, 11) * expected.stderr
        assert columns["hurts"] == is_significant
    assert group.plan_columns[2]["hurts"] == (fitted_task == OTHER_TASK)


LOSSES_BARE = np.array([[1.0, 2], [1, 2], [3, 4]])
"""Of three samples: nats, and tokens."""
LOSSES_REPAIRED = np.array([[2.0, 2], [2, 2], [5, 4]])


def test_copies_of_a_document_count_once() -> None:
    """Their sums: 1 and 4 nats more, each on 4 of 8 tokens, so residuals are -1.5 and 1.5."""
    bare = np.array([[1.0, 2], [3, 2], [3, 4]])
    repaired = np.array([[2.0, 2], [3, 2], [7, 4]])

    columns = harm.compare_losses(bare, repaired, [0, 0, 1])

    assert columns["n_loss"] == 2
    assert columns["loss_stderr"] == pytest.approx(3 / 8)


def test_one_document_is_never_significant() -> None:
    columns = harm.compare_losses(LOSSES_BARE, LOSSES_REPAIRED, [0, 0, 0])

    assert columns["loss_stderr"] is None
    assert not columns["hurts"]


def test_plans_with_a_common_run_share_its_stream() -> None:
    """Comparing two plans costs what their four models cost in one pass."""
    model = tiny.model()
    samples = tiny.samples(tiny.tokens(rows=6).tolist())
    first_patch = Patch(torch.eye(32) / 50)
    second_patch = Patch(torch.eye(32) / 50)
    candidates = {
        "first": Candidate(frozenset({"1"})),
        "first, repaired": Candidate(frozenset({"1"}), {(1, 2): first_patch}),
        "both": Candidate(frozenset({"1", "3"})),
        "both, repaired": Candidate(
            frozenset({"1", "3"}), {(1, 2): first_patch, (3, 4): second_patch}
        ),
    }
    fits = {
        (1, 2): Fit(first_patch.tensors, first_patch.tensors, {}),
        (3, 4): Fit(second_patch.tensors, second_patch.tensors, {}),
    }
    plans = [plan_of(["1"]), plan_of(["1", "3"])]
    boundaries: dict[int, list[Boundary]] = {1: [(1, 2)], 2: [(1, 2), (3, 4)]}
    # The engine proves itself on a model once, so that the proof is in neither count.
    harm.measure_losses(model, samples, {"unpruned": Candidate()})
    sizes: list[int] = []

    def record_size(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        sizes.append(output.numel())

    mlp_after_common_run = layers_of(model)[2].mlp
    mlp_after_common_run.register_forward_hook(record_size)

    harm.measure_losses(model, samples, candidates)
    size_in_one_pass = sum(sizes)
    sizes.clear()
    harm.measure_harm(model, "ghost", plans, boundaries, samples, fits)

    assert 0 < sum(sizes) == size_in_one_pass


def record_choice(results: Path, units: list[str], repair: str) -> None:
    """Let a plan say that a portfolio chose it with a repair."""
    plan = plan_of(units) | {"choice": {"repair": repair}}
    parquet.write_text(paths.plan(PRUNED.key, len(units), results), json.dumps(plan))


def test_a_plan_that_was_chosen_with_its_repair_is_not_tested_again(results: Path) -> None:
    record_choice(results, ["2", "4"], "none")

    rows = fit_repair(results, "patched", method="ghost")

    assert [(row["removed"], row["n_loss"]) for row in rows] == [(1, 6), (2, None), (2, None)]


@pytest.fixture
def best_repair(results: Path) -> str:
    """The name of the one of two repairs that lowers the loss more."""
    gains: dict[str, float] = {}
    for name, ridge in (("one", 1e-9), ("two", 1.0)):
        rows = fit_repair(results, name, method="ghost", ridge=ridge)
        gains[name] = rows[0]["loss_bare"] - rows[0]["loss_repaired"]
    best = max(gains, key=gains.__getitem__)
    assert gains[best] > 0
    return best


def loaded_logits(results: Path, repair: str = "") -> torch.Tensor:
    """Of the variant of size 1 with a repair, or by its name without one."""
    name = f"{PRUNED.key}/removed=1"
    if repair:
        name += f"/{repair}/none"
    model, _ = lamina.load(name, results, device="cpu")
    return logits_of(model)


def test_without_its_name_the_repair_is_loaded_that_lowers_the_loss_most(
    results: Path, best_repair: str
) -> None:
    logits = loaded_logits(results)

    assert torch.equal(logits, loaded_logits(results, best_repair))
    assert not torch.equal(logits, loaded_logits(results, "none"))


def test_a_repair_that_hurts_is_loaded_by_its_name_alone(results: Path, best_repair: str) -> None:
    for name in ("one", "two"):
        file = paths.patch_table(PRUNED.key, name, results)
        rows = parquet.read_table(file).to_pylist()
        for row in rows:
            row["loss_repaired"] = row["loss_bare"] + 1
            row["hurts"] = True
        parquet.write_table(file, parquet.from_rows("patches", rows))

    assert torch.equal(loaded_logits(results), loaded_logits(results, "none"))
    assert not torch.equal(loaded_logits(results, best_repair), loaded_logits(results, "none"))


def test_the_repair_that_a_plan_was_chosen_with_is_loaded_without_its_name(
    results: Path, best_repair: str
) -> None:
    other_repair = "two" if best_repair == "one" else "one"
    record_choice(results, ["2"], other_repair)

    assert torch.equal(loaded_logits(results), loaded_logits(results, other_repair))


def test_a_variant_that_was_not_made_is_not_loaded(results: Path) -> None:
    with pytest.raises(LaminaError, match="has not been made"):
        lamina.load(f"{PRUNED.key}/removed=10", results, device="cpu")


AnswerKey = tuple[Any, ...]
"""Question, plan size, and the calibrations of the variants that the answer names."""


def open_report(two_models: Path, folder: Path, hurting_sizes: list[int]) -> Any:
    """A report in which the repairs of some sizes hurt for calibration `facts`."""
    rows = parquet.read_table(two_models / "patches.parquet").to_pylist()
    for row in rows:
        row |= {"loss_bare": 1.0, "loss_repaired": 1.5, "n_loss": 20}
        row["hurts"] = row["removed"] in hurting_sizes and row["calibration"] == "facts"
    patches_file = folder / "patches.parquet"
    parquet.write_table(patches_file, parquet.from_rows("patches", rows))
    other_files = [file for file in two_models.glob("*.parquet") if file.stem != "patches"]
    return database.connect_views([*other_files, patches_file])


def recommended_variants(connection: Any) -> dict[AnswerKey, list[str]]:
    """The variants that the report recommends among those with repair `ghost`."""
    rows = query_rows(
        connection,
        "SELECT question, removed, variants FROM answers WHERE model = 'a' "
        "AND selector = 'cosine' AND repair = 'ghost' AND healing = 'none'",
    )
    variants_by_key: dict[AnswerKey, list[str]] = {}
    for row in rows:
        calibrations = [variant.split("/")[1] for variant in row["variants"]]
        key = (row["question"], row["removed"], *calibrations)
        variants_by_key[key] = row["variants"]
    return variants_by_key


def harm_sentences(connection: Any) -> list[str]:
    return [sentence for sentence in list_harmful_repairs(connection) if "held-out" in sentence]


def test_the_report_recommends_no_repair_that_hurts(two_models: Path, tmp_path: Path) -> None:
    variants_before = recommended_variants(open_report(two_models, tmp_path, []))
    variants = recommended_variants(open_report(two_models, tmp_path, [2]))

    removed_keys = variants_before.keys() - variants.keys()
    assert removed_keys == {("task", 2, "facts"), ("model", 2, "facts")}
    for key, names in variants.items():
        question = key[0]
        if question != "recipe":
            assert names == variants_before[key]


def test_a_recipe_takes_no_repair_in_place_of_one_that_hurts(
    two_models: Path, tmp_path: Path
) -> None:
    variants_before = recommended_variants(open_report(two_models, tmp_path, []))
    variants = recommended_variants(open_report(two_models, tmp_path, [2]))

    recipe_of_size_1 = ("recipe", 1, "facts", "recall")
    assert variants[recipe_of_size_1] == variants_before[recipe_of_size_1]
    repair_by_calibration: dict[str, str] = {}
    for variant in variants["recipe", 2, "facts", "recall"]:
        _, calibration, _, _, repair, *_ = variant.split("/")
        repair_by_calibration[calibration] = repair
    assert repair_by_calibration == {"recall": "ghost", "facts": "none"}


def test_the_report_says_which_repairs_hurt(two_models: Path, tmp_path: Path) -> None:
    (sentence,) = harm_sentences(open_report(two_models, tmp_path, [2]))

    assert sentence.startswith(
        "Repairs that hurt on held-out documents of their calibration, so that they are not"
    )
    assert "(1 to 1.5 nats per token, n = 20)" in sentence
    assert not harm_sentences(open_report(two_models, tmp_path, []))

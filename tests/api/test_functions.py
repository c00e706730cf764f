"""The functions of `lamina` refuse what a configuration refuses, in its words, and say what to do."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import lamina
from lamina.api.inputs import PreparedCalibration, PreparedModel
from lamina.api.variants import PrunedModel
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.version import VERSION
from tests import ROOT
from tests.given import gguf_files

REFERENCE = ROOT / "resources/reference"


@pytest.fixture(scope="module")
def base() -> PreparedModel:
    return lamina.open_model(REFERENCE, dtype="float32", device="cpu")


def write_questions(path: Path, first: int, count: int) -> str:
    lines = (REFERENCE / "data/facts_validation.jsonl").read_text("utf-8").splitlines()
    path.write_text("\n".join(lines[first : first + count]), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def facts(base: PreparedModel, tmp_path_factory: pytest.TempPathFactory) -> PreparedCalibration:
    file = write_questions(tmp_path_factory.mktemp("facts") / "facts.jsonl", 0, 20)
    return lamina.prepare(base, "facts", choices=file)


@pytest.fixture(scope="module")
def pruned(base: PreparedModel, facts: PreparedCalibration) -> PrunedModel:
    (variant,) = lamina.select(base, facts, removed=["10%"], strategy="random")
    return variant


def test_a_model_is_named_by_its_folder(base: PreparedModel, pruned: PrunedModel) -> None:
    assert base.name == "reference"
    assert repr(base).startswith("PreparedModel('reference', llama of 12 layers, float32, from ")
    assert str(pruned.variant) == "reference/facts/random/removed=1/none/none"
    assert pruned.model.config.num_hidden_layers == base.n_layers - 1


def test_every_public_name_is_there() -> None:
    """A module of the same name would hide a function once it is imported."""
    assert lamina.__version__ == VERSION
    for name in set(lamina.__all__) - {"__version__"}:
        assert callable(getattr(lamina, name)), name
        assert f"lamina.{name}" not in sys.modules


def test_keys_that_make_several_entries_of_one_are_refused(base: PreparedModel) -> None:
    with pytest.raises(LaminaError, match=r"^calibrations\.facts\.replicates: only works in the w"):
        lamina.prepare(base, "facts", choices="facts.jsonl", replicates=3)
    with pytest.raises(LaminaError, match=r"^models\.reference\.checkpoints: only works in the w"):
        lamina.open_model("step{checkpoint}", name="reference", checkpoints=[1, 2])


def test_a_wrong_option_is_refused_as_in_a_configuration(
    base: PreparedModel, facts: PreparedCalibration, pruned: PrunedModel, tmp_path: Path
) -> None:
    with pytest.raises(LaminaError, match=r"^models\.reference\.dtyp: .*Did you mean 'dtype'"):
        lamina.open_model(REFERENCE, dtyp="float32")
    with pytest.raises(LaminaError, match=r"^calibrations\.a\.limit"):
        lamina.prepare(base, "a", task="microworld_facts", limit=0)
    with pytest.raises(LaminaError, match=r"^selectors\.block\.metric"):
        lamina.select(base, facts, removed=[1], strategy="block", metric="accuracy")
    with pytest.raises(LaminaError, match=r"^repairs\.ghost\.ridge"):
        lamina.repair(pruned, method="ghost", ridge=-1)
    with pytest.raises(LaminaError, match=r"^healings\.lora\.rank"):
        lamina.heal(pruned, tmp_path, method="lora", rank=0)
    with pytest.raises(LaminaError, match=r"^perplexity\.corpus\.window"):
        lamina.evaluate(pruned, perplexity={"corpus": {"text": "microworld_corpus"}})


@pytest.mark.parametrize("size", [0, 12, "0%", "a quarter", -1])
def test_a_size_that_cannot_be_removed_is_refused(
    base: PreparedModel, facts: PreparedCalibration, size: int | str
) -> None:
    with pytest.raises(LaminaError, match="Write a number from 1 to 11, or a share"):
        lamina.select(base, facts, removed=[size], strategy="random")


def test_a_layer_that_is_not_there_is_refused(
    base: PreparedModel, facts: PreparedCalibration
) -> None:
    with pytest.raises(LaminaError, match=r"^selectors\.random\.protect: 50 is not a layer"):
        lamina.select(base, facts, removed=[1], strategy="random", protect=[50])


def test_a_calibration_that_was_not_given_is_named(
    base: PreparedModel, facts: PreparedCalibration, pruned: PrunedModel
) -> None:
    with pytest.raises(
        LaminaError, match="names calibration 'general', but lamina.select was given only facts"
    ):
        lamina.select(base, facts, removed=[1], strategy="portfolio", also={"general": 1})
    with pytest.raises(
        LaminaError, match="names calibration 'general', but lamina.select was given only facts"
    ):
        lamina.repair(pruned, method="ghost", data={"own": 1, "general": 0.1})


def test_a_repair_in_place_must_be_defined(base: PreparedModel, facts: PreparedCalibration) -> None:
    with pytest.raises(LaminaError, match=r"^selectors\.iterative\.repair: 'g' is not defined"):
        lamina.select(base, facts, removed=[1], metric="accuracy", repair="g")


def read_operators(repaired: PrunedModel) -> dict[Boundary, torch.Tensor]:
    assert repaired.patches is not None
    return {boundary: fitted.tensors["operator"] for boundary, fitted in repaired.patches.items()}


def test_the_repair_in_place_is_fitted_behind_the_selection(
    base: PreparedModel, facts: PreparedCalibration
) -> None:
    repairs = {"g": {"method": "ghost"}}
    options = {"strategy": "one_shot", "metric": "perplexity", "repair": "g"}
    (selected,) = lamina.select(base, facts, removed=1, repairs=repairs, **options)

    repaired = lamina.repair(selected)
    assert repaired.variant.repair == "g"
    assert lamina.repair(selected, name="mine").variant.repair == "mine"
    operators = read_operators(repaired)
    asked_for = read_operators(lamina.repair(selected, method="ghost"))
    assert operators.keys() == asked_for.keys()
    for boundary, operator in operators.items():
        assert operator.count_nonzero()
        assert torch.equal(operator, asked_for[boundary])


def test_a_repair_is_described_by_its_fit(pruned: PrunedModel) -> None:
    repaired = lamina.repair(pruned, method="ghost")

    assert pruned.patch_table is None
    assert repaired.patch_table is not None
    (row,) = repaired.patch_table.to_pylist()
    assert (row["repair"], row["removed"]) == ("ghost", 1)
    assert row["n_loss"] == 4  # a fifth of the 20 questions is held out
    assert row["loss_repaired"] != row["loss_bare"]


def test_two_calibrations_of_one_name_are_refused(
    base: PreparedModel, facts: PreparedCalibration
) -> None:
    with pytest.raises(LaminaError, match="calibrations: two have one name"):
        lamina.select(base, [facts, facts], removed=1, strategy="random")


def test_a_healing_that_was_overwritten_is_refused(pruned: PrunedModel, tmp_path: Path) -> None:
    options = {"method": "lora", "rank": 2, "epochs": 1, "batch": 10, "data": {"own": 1}}
    first = lamina.heal(pruned, tmp_path / "healed", **options)
    assert first.model.config.num_hidden_layers == pruned.model.config.num_hidden_layers

    second = lamina.heal(pruned, tmp_path / "healed", learning_rate=0.01, **options)

    assert second.parts.adapter == str(tmp_path / "healed")
    with pytest.raises(
        LaminaError, match="no longer holds the healing of reference/.*another one was"
    ):
        lamina.evaluate(first, tasks={"microworld_facts": {"limit": 5}})


def test_one_size_needs_no_list_and_what_select_gives_is_one(
    base: PreparedModel, facts: PreparedCalibration
) -> None:
    selected = lamina.select(base, facts, removed=2, strategy="random")
    assert [len(pruned.plan.units) for pruned in selected] == [2]

    with pytest.raises(LaminaError, match=r"select returns a list .* Write \(pruned,\) = "):
        lamina.repair(selected, method="ghost")  # type: ignore[arg-type]


def test_without_a_choice_a_repair_needs_a_method(pruned: PrunedModel) -> None:
    with pytest.raises(LaminaError, match="the selection of .* chose no repair"):
        lamina.repair(pruned)


def test_variants_of_one_name_are_not_compared(pruned: PrunedModel) -> None:
    with pytest.raises(LaminaError, match="two are named reference/facts/random"):
        lamina.evaluate([pruned, pruned], tasks={"microworld_facts": {}})


def test_a_test_on_calibration_documents_is_refused(pruned: PrunedModel, tmp_path: Path) -> None:
    seen = write_questions(tmp_path / "seen.jsonl", 15, 20)

    with pytest.raises(LaminaError, match="calibrations.facts shares 5 of its 20 documents"):
        lamina.evaluate(pruned, tasks={"facts": {"choices": seen}})


def test_each_calibration_and_each_benchmark_of_a_name_is_searched_for_test_documents(
    base: PreparedModel, pruned: PrunedModel, tmp_path: Path
) -> None:
    other_file = write_questions(tmp_path / "other.jsonl", 40, 20)
    others = lamina.prepare(base, "facts", choices=other_file)
    (other,) = lamina.select(base, others, removed=1, strategy="random", name="other")
    seen = write_questions(tmp_path / "seen.jsonl", 15, 20)
    text = tmp_path / "text.txt"
    text.write_text("The text of a test shares a name with a task. " * 20, encoding="utf-8")

    with pytest.raises(LaminaError, match="calibrations.facts shares 5 of its 20 documents"):
        lamina.evaluate([pruned, other], tasks={"facts": {"choices": seen}})
    with pytest.raises(LaminaError, match="calibrations.facts shares 5 of its 20 documents"):
        lamina.evaluate(
            pruned,
            tasks={"facts": {"choices": seen}},
            perplexity={"facts": {"text": str(text), "window": 16}},
        )


def test_questions_of_your_own_are_measured_with_their_number(
    pruned: PrunedModel, tmp_path: Path
) -> None:
    heldout = write_questions(tmp_path / "heldout.jsonl", 20, 30)

    measured = lamina.evaluate(pruned, tasks={"facts": {"choices": heldout}})

    accuracies = [row for row in measured.benchmarks.to_pylist() if row["metric"] == "acc"]
    assert [row["removed"] for row in accuracies] == [0, 1]
    assert all(row["n_samples"] == 30 and row["stderr"] is not None for row in accuracies)


def test_samples_are_the_documents_behind_each_number(pruned: PrunedModel, tmp_path: Path) -> None:
    heldout = write_questions(tmp_path / "heldout.jsonl", 20, 30)

    measured = lamina.evaluate(pruned, tasks={"facts": {"choices": heldout}})

    values: dict[tuple[int, str], list[float]] = defaultdict(list)
    for sample in measured.samples.to_pylist():
        values[sample["removed"], sample["metric"]].append(sample["value"])
    rows = measured.benchmarks.to_pylist()
    assert {(row["removed"], row["metric"]) for row in rows} == set(values)
    for row in rows:
        values_of_row = values[row["removed"], row["metric"]]
        assert len(values_of_row) == 30
        assert row["value"] == pytest.approx(sum(values_of_row) / 30)


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(LaminaError, match=r"there is no file nowhere/model\.gguf"):
        lamina.open_model("nowhere/model.gguf")


def test_a_gguf_file_is_dequantised_once(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf")

    opened = lamina.open_model(tmp_path / "tiny.gguf", results=tmp_path, device="cpu")
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    written = (checkpoint / "config.json").stat().st_mtime_ns
    again = lamina.open_model(tmp_path / "tiny.gguf", results=tmp_path, device="cpu")

    assert opened.name == "tiny"
    assert (checkpoint / "config.json").stat().st_mtime_ns == written
    assert again.manifest["weights_sha256"] == opened.manifest["weights_sha256"]

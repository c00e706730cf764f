"""Handles: short names of variants, in the order of the configuration, and what they stand for."""

import copy
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.study.handles import name_handles, resolve_variant
from lamina_workflow.study.requests import list_variants
from tests.given.configurations import RawConfig, write_model_and_data

STUDY = """
models: {small: {source: small}}
calibrations:
  recall: {task: microworld_recall}
  facts: {task: microworld_facts}
selectors: {cosine: {metric: cosine}, accuracy: {metric: accuracy}}
repairs: {ghost: {method: ghost}, affine: {method: ghost, bias: true}}
healings: {lora: {method: lora}}
benchmarks: {tasks: {microworld_recall: {}, microworld_facts: {}}}
studies:
  prune:
    models: [small]
    calibrations: [recall, facts]
    selectors: [accuracy, cosine]
    removed: [1, 2]
    repairs: [none, ghost]
    healings: [none, lora]
    tasks: own
"""


@pytest.fixture
def raw() -> RawConfig:
    study: RawConfig = yaml.safe_load(STUDY)
    return study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_model_and_data(tmp_path)


def write_handles(folder: Path, variant_by_handle: dict[str, str]) -> Path:
    rows = [
        {"handle": handle, **asdict(Variant.parse(name))}
        for handle, name in variant_by_handle.items()
    ]
    table = folder / "handles.parquet"
    parquet.write_table(table, parquet.from_rows("handles", rows))
    return table


def test_every_variant_has_a_handle_in_the_order_of_the_configuration(raw, root):
    configuration = load_configuration(raw, root)

    handles = name_handles(configuration)

    assert sorted(handles.values()) == sorted(map(str, list_variants(configuration)))
    assert handles["A1"] == "small/recall/cosine/removed=1/none/none"
    assert handles["A2a"] == "small/recall/cosine/removed=2/ghost/none"
    assert handles["B2b"] == "small/recall/accuracy/removed=2/none/lora"
    assert handles["D1c"] == "small/facts/accuracy/removed=1/ghost/lora"


def test_sizes_at_and_below_zero_have_handles_that_are_read_again(raw, root):
    raw["selectors"]["twice"] = {"strategy": "given", "layers": [7], "edits": ["2x2", "3<>4"]}
    raw["studies"]["more"] = {**raw["studies"]["prune"], "selectors": ["twice"], "removed": [0, -1]}

    handles = name_handles(load_configuration(raw, root))

    assert handles["C-1"] == "small/recall/twice/removed=-1/none/none"
    assert handles["C0a"] == "small/recall/twice/removed=0/ghost/none"
    table = write_handles(root, handles)
    assert all(resolve_variant(handle, table) == name for handle, name in handles.items())


def test_what_is_added_at_the_end_leaves_handles_as_they_are(raw, root):
    longer = copy.deepcopy(raw)
    longer["calibrations"]["hops"] = {"task": "microworld_hops"}
    longer["benchmarks"]["tasks"]["microworld_hops"] = {}
    longer["studies"]["prune"]["calibrations"].append("hops")
    longer["studies"]["prune"]["removed"].append(3)

    before = name_handles(load_configuration(raw, root))
    after = name_handles(load_configuration(longer, root))

    assert before.items() <= after.items()


def test_a_handle_and_a_name_are_resolved(raw, root):
    handles = name_handles(load_configuration(raw, root))
    table = write_handles(root, handles)

    assert resolve_variant("d1C", table) == handles["D1c"]
    name = "small/facts/other/removed=5/none/none"
    assert resolve_variant(f"{name}/", table) == name


def test_an_unknown_handle_is_refused_with_those_that_are_near(raw, root):
    table = write_handles(root, name_handles(load_configuration(raw, root)))

    with pytest.raises(LaminaError, match=r"no variant 'A3'.*A1 \(small/recall/cosine/removed=1"):
        resolve_variant("A3", table)


def test_a_handle_without_a_run_says_what_to_do(tmp_path):
    with pytest.raises(LaminaError, match="cd to the folder of the study"):
        resolve_variant("A3", tmp_path / "handles.parquet")


def test_what_is_neither_handle_nor_name_is_refused(tmp_path):
    with pytest.raises(LaminaError, match="is not a variant"):
        resolve_variant("small/recall", tmp_path / "handles.parquet")

"""`periods: whole`: what is left has the pattern of layers that the unpruned model begins with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    DeepseekV3Config,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from lamina.errors import LaminaError
from lamina.models.cutting import kinds_by_layer, kinds_of, shifts_kinds
from lamina.models.surgery import remove_units
from lamina.options.selectors import Selector
from lamina.selection import choosing
from lamina.selection.plans import Plan, StepEvidence
from lamina_workflow.checks.load import load_configuration
from tests.given import tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data

DEPTH = 13
PATTERN = [*["sliding_attention"] * 3, "full_attention"]
TYPES = (PATTERN * DEPTH)[:DEPTH]


@pytest.mark.parametrize(
    ("config", "differs"),
    [
        (LlamaConfig(num_hidden_layers=8), ()),
        (Gemma3TextConfig(num_hidden_layers=8), (5,)),
        (GptOssConfig(num_hidden_layers=8), (1, 3, 5, 7)),
        (SmolLM3Config(num_hidden_layers=8), (3, 7)),
        (Llama4TextConfig(num_hidden_layers=8), (3, 7)),
        (DeepseekV3Config(num_hidden_layers=8), (3, 4, 5, 6, 7)),  # three dense layers first
        (Qwen3MoeConfig(num_hidden_layers=8, decoder_sparse_step=2), (1, 3, 5, 7)),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_kinds_of_layers_are_those_of_the_configurations_lists(
    config: Any, differs: tuple[int, ...]
) -> None:
    found = kinds_by_layer(config, 8)
    assert found == [differs[0] if layer in differs else 0 for layer in range(8)]
    assert not shifts_kinds(found, range(5)) and shifts_kinds(found, [0, *differs, 7]) == bool(
        differs
    )


def chosen(
    folder: Path, removed: int, distances: dict[tuple[int, int], float], **options: Any
) -> Plan:
    """The plan for a tiny Gemma 3 in a folder, as the job of a step makes it."""
    selector = Selector.from_options(
        {"strategy": "block", "metric": "angular", "periods": "whole", **options}
    )
    manifest = {"path": str(folder), "trust_remote_code": False, "n_layers": DEPTH}
    keys = {"model": "m", "calibration": "c", "selector": "s", "removed": removed}
    return choosing.choose_plan(
        selector, keys, DEPTH, StepEvidence(distances=distances), layer_kinds=kinds_of(manifest)
    )


@pytest.mark.parametrize("removed", range(1, DEPTH))
def test_the_cut_models_types_are_the_first_of_the_base_model(removed: int, tmp_path: Path) -> None:
    base = tiny.model("gemma3_text", depth=DEPTH, layer_types=TYPES)
    base.config.save_pretrained(tmp_path)
    spread = np.random.default_rng(removed)
    distances = {(start, removed): float(spread.random()) for start in range(DEPTH - removed + 1)}
    plan = chosen(tmp_path, removed, distances)
    # Every run, tried by hand.
    right = [
        s
        for s in range(DEPTH - removed + 1)
        if TYPES[:s] + TYPES[s + removed :] == TYPES[: DEPTH - removed]
    ]
    start = min(right, key=lambda s: distances[s, removed])
    assert plan.units == [str(layer) for layer in range(start, start + removed)]
    assert remove_units(base, plan.units).config.layer_types == TYPES[: DEPTH - removed]


def test_a_size_that_no_whole_period_has_is_refused_with_what_to_write(tmp_path: Path) -> None:
    tiny.model("gemma3_text", depth=DEPTH, layer_types=TYPES).config.save_pretrained(tmp_path)
    distances = {(start, 3): 0.1 for start in range(DEPTH)}
    plan = chosen(tmp_path, 3, distances, protect=[-1, -2])
    assert not plan.units and "no run of 3 layers can be removed" in (plan.refused or "")


def test_a_strategy_that_cannot_keep_the_pattern_is_refused(tmp_path: Path) -> None:
    raw = set_key(minimal_config(), "selectors.accuracy.periods", "whole")
    with pytest.raises(
        LaminaError,
        match="selectors.accuracy.periods: 'whole' does not go with strategy 'iterative'",
    ):
        load_configuration(raw, write_model_and_data(tmp_path))

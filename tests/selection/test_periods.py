"""`periods: whole`: the layers that stay have the kinds that the unpruned model begins with.

The runs that may go are found by trying each of them on the model's own list of layer types.
"""

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
from lamina.models.surgery import apply_edits
from lamina.options.selectors import Selector
from lamina.selection import choosing
from lamina.selection.plans import Plan, StepEvidence
from lamina_workflow.checks.load import load_configuration
from tests.given import tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.selection.examples import KEYS

DEPTH = 13
PATTERN = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
LAYER_TYPES = (PATTERN * DEPTH)[:DEPTH]


@pytest.mark.parametrize(
    ("config", "different_layers"),
    [
        (LlamaConfig(num_hidden_layers=8), []),
        (Gemma3TextConfig(num_hidden_layers=8), [5]),
        (GptOssConfig(num_hidden_layers=8), [1, 3, 5, 7]),
        (SmolLM3Config(num_hidden_layers=8), [3, 7]),
        (Llama4TextConfig(num_hidden_layers=8), [3, 7]),
        (DeepseekV3Config(num_hidden_layers=8), [3, 4, 5, 6, 7]),  # three dense layers first
        (Qwen3MoeConfig(num_hidden_layers=8, decoder_sparse_step=2), [1, 3, 5, 7]),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_kinds_of_layers_are_those_of_the_configurations_lists(
    config: Any, different_layers: list[int]
) -> None:
    """A kind is named by the first layer that has it."""
    kinds = kinds_by_layer(config, 8)

    for layer, kind in enumerate(kinds):
        if layer in different_layers:
            assert kind == different_layers[0]
        else:
            assert kind == 0
    # Without layers 5 to 7 nothing moves; without layers from the middle, others take their place.
    assert not shifts_kinds(kinds, range(5))
    assert shifts_kinds(kinds, [0, *different_layers, 7]) == bool(different_layers)


def choose_run(
    folder: Path, n_removed: int, distances: dict[tuple[int, int], float], **options: Any
) -> Plan:
    """The plan for a tiny Gemma 3 in a folder, as the job of a step makes it."""
    model = tiny.model("gemma3_text", depth=DEPTH, layer_types=LAYER_TYPES)
    model.config.save_pretrained(folder)
    selector = Selector.from_options(
        {"strategy": "block", "metric": "angular", "periods": "whole", **options}
    )
    manifest = {"path": str(folder), "trust_remote_code": False, "n_layers": DEPTH}
    return choosing.choose_plan(
        selector,
        KEYS | {"removed": n_removed},
        DEPTH,
        StepEvidence(distances=distances),
        layer_kinds=kinds_of(manifest),
    )


@pytest.mark.parametrize("n_removed", range(1, DEPTH))
def test_the_types_of_the_cut_model_are_the_first_of_the_base_model(
    n_removed: int, tmp_path: Path
) -> None:
    generator = np.random.default_rng(n_removed)
    starts = range(DEPTH - n_removed + 1)
    distances = {(start, n_removed): float(generator.random()) for start in starts}

    plan = choose_run(tmp_path, n_removed, distances)

    first_types = LAYER_TYPES[: DEPTH - n_removed]
    allowed_starts: list[int] = []
    for start in starts:
        remaining_types = LAYER_TYPES[:start] + LAYER_TYPES[start + n_removed :]
        if remaining_types == first_types:
            allowed_starts.append(start)
    best_start = min(allowed_starts, key=lambda start: distances[start, n_removed])
    assert plan.units == [str(layer) for layer in range(best_start, best_start + n_removed)]
    model = tiny.model("gemma3_text", depth=DEPTH, layer_types=LAYER_TYPES)
    assert apply_edits(model, plan.units).config.layer_types == first_types


def test_a_size_that_no_whole_period_has_is_refused(tmp_path: Path) -> None:
    distances = {(start, 3): 0.1 for start in range(DEPTH)}

    plan = choose_run(tmp_path, 3, distances, protect=[-1, -2])

    assert not plan.units
    assert plan.refused is not None
    assert "no run of 3 layers can be removed" in plan.refused


def test_a_strategy_that_cannot_keep_the_pattern_is_refused(tmp_path: Path) -> None:
    raw = set_key(minimal_config(), "selectors.accuracy.periods", "whole")
    message = "selectors.accuracy.periods: 'whole' does not go with strategy 'iterative'"

    with pytest.raises(LaminaError, match=message):
        load_configuration(raw, write_model_and_data(tmp_path))

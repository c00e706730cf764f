"""Sizes by memory, parameters and time: against hand counts and against models that are really cut."""

import copy
import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lamina.errors import LaminaError
from lamina.models import manifest, sizes
from lamina.models.materialise import materialise
from lamina.models.units import all_units
from lamina_workflow.checks import load
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study import requests
from tests import ROOT
from tests.families import configurations
from tests.given import tiny
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data

C, DEPTH, WORDS, CONTEXT = 32, 5, tiny.VOCABULARY, 20
# Query and output are C wide, keys and values have half of the heads.
ATTENTION, MLP, APART, TIED = 3 * C * C, 3 * C * 48, 2 * WORDS * C + C, WORDS * C + C
# Parameters of attention, MLP, what one token uses of it, norms, and beside the layers; and tokens that a layer caches.
SHAPES: dict[str, tuple[int, int, int, int, int, list[int]]] = {
    "llama": (ATTENTION, MLP, MLP, 2 * C, APART, [CONTEXT] * DEPTH),
    "tied": (ATTENTION, MLP, MLP, 2 * C, TIED, [CONTEXT] * DEPTH),
    "qwen2": (ATTENTION + 2 * C, MLP, MLP, 2 * C, APART, [CONTEXT] * DEPTH),
    # One of two experts works for a token, and so does the router.
    "mixtral": (ATTENTION, 2 * MLP + 2 * C, MLP + 2 * C, 2 * C, APART, [CONTEXT] * DEPTH),
    # Every other layer looks back six tokens.
    "gemma3_text": (ATTENTION + 2 * 8, MLP, MLP, 4 * C, TIED, [6, CONTEXT, 6, CONTEXT, 6]),
}


def saved(name: str, folder: Path) -> Path:
    (
        tiny.model("llama", tie_word_embeddings=True) if name == "tied" else tiny.model(name)
    ).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_are_those_that_a_hand_counts(name: str, tmp_path: Path) -> None:
    attention, mlp, used, norms, beside, held = SHAPES[name]
    folder = saved(name, tmp_path / "model")
    found = sizes.count_sizes(manifest.load_skeleton(folder, "model", False), 4)
    layer, cached = attention + mlp + norms, [4 * 2 * 2 * 8 * tokens for tokens in held]

    whole, gone = found.amounts("parameters", CONTEXT)
    assert whole == DEPTH * layer + beside
    kinds = {"layer": layer, "attention": attention, "mlp": mlp, "both": attention + mlp}
    assert gone == {kind: pytest.approx([count] * DEPTH) for kind, count in kinds.items()}
    whole, gone = found.amounts("memory", CONTEXT)
    assert whole == 4 * (DEPTH * layer + beside) + sum(cached)
    assert gone["layer"] == [4 * layer + more for more in cached]
    assert gone["attention"] == [4 * attention + more for more in cached]
    assert (gone["mlp"], gone["both"]) == (
        [4 * mlp] * DEPTH,
        pytest.approx([4 * (attention + mlp)] * DEPTH),
    )
    whole, gone = found.amounts("latency", CONTEXT)
    assert gone["layer"] == [4 * (layer - mlp + used) + more for more in cached]
    assert whole == sum(gone["layer"]) + 4 * WORDS * C
    # Every set of halves gives back at least its worth of a layer, whatever halves count by.
    alone = list(zip(gone["attention"], gone["mlp"], strict=True))
    for cost in ("parameters", "latency", 0.3):
        worth = found.amounts("latency", CONTEXT, cost)[1]["both"]
        share = found.share(cost)
        for (a, m), each in zip(alone, worth, strict=True):
            assert each == pytest.approx(min(a / share, m / (1 - share)))
    if name in ("llama", "tied", "qwen2"):
        # No cache is longer than the model takes.
        worth = found.amounts("latency", 10**6, "latency")[1]["both"]
        assert worth == pytest.approx(
            [4 * (attention + mlp + 2 * 2 * 8 * int(found.longest))] * DEPTH
        )


def parameters_of(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


# Names of tensors that say nothing of attention (temporal_block, mamba, conv), fused maps, experts, other settings.
@pytest.mark.parametrize(
    "family",
    ["recurrent_gemma", "jamba", "lfm2", "gpt2", "gptj", "codegen", "gpt_bigcode", "falcon"]
    + ["deepseek_v3", "bamba", "phi3", "gpt_neo"],
)
def test_sizes_are_those_of_models_that_are_really_cut(family: str, tmp_path: Path) -> None:
    model = configurations.model(family).eval()
    model.save_pretrained(tmp_path)
    found = sizes.count_sizes(manifest.load_skeleton(tmp_path, family, False), 4)
    whole, saved = found.amounts("parameters", CONTEXT)
    assert whole == parameters_of(model)
    for kind, suffix in (("layer", ""), ("attention", ".attention"), ("mlp", ".mlp")):
        for number, amount in enumerate(saved[kind]):
            cut = materialise(model, {"units": [f"{number}{suffix}"]})
            assert parameters_of(model) - parameters_of(cut) == amount, (kind, number)

    with torch.no_grad():
        cache = getattr(model(tiny.tokens(1, CONTEXT), use_cache=True), "past_key_values", None)
    if cache is not None:  # recurrent_gemma keeps it in its layers
        held = [
            0 if getattr(layer, "keys", None) is None else layer.keys.numel() + layer.values.numel()
            for layer in cache.layers
        ]
        assert held == [found.cached_numbers * min(CONTEXT, n) for n in found.cached_tokens]
        # Of the whole context, which the default of 4,096 tokens exceeds.
        weights = 4 * parameters_of(model)
        assert found.amounts("memory", 4096)[0] == weights + sum(
            4 * found.cached_numbers * min(configurations.CONTEXT, n) for n in found.cached_tokens
        )


@pytest.mark.parametrize("family", ["gpt2", "gptj", "codegen", "gpt_bigcode"])
def test_a_size_between_those_at_the_context_and_beyond_it_is_allowed(
    family: str, root: Path
) -> None:
    """The cache of 4,096 tokens would be many times that of the 128 that the model takes."""
    model = configurations.model(family)
    model.save_pretrained(root / "tiny")
    (root / "tiny/tokenizer.json").write_text("{}")
    config = study(root, {"memory": f"{2 * parameters_of(model) / 1e3:.0f}KB"})
    (removed,) = counts(config)
    with pytest.raises(LaminaError, match="leaves 'tiny' as it is"):
        study(root, {"memory": "1MB"})
    assert 0 < removed < DEPTH


@pytest.fixture
def root(tmp_path: Path) -> Path:
    saved("gemma3_text", tmp_path / "tiny")
    return write_model_and_data(tmp_path)


def study(root: Path, *removed: Any, **changes: Any) -> Configuration:
    """A study of the tiny model, chosen by the selectors of a small configuration."""
    raw: RawConfig = minimal_config()
    raw["models"]["tiny"] = {"source": "tiny", "dtype": "bfloat16"}
    own = {
        "models": ["tiny"],
        "calibrations": ["recall"],
        "selectors": ["accuracy"],
        "removed": list(removed),
    }
    return load.load_configuration(set_key(raw, "studies", {"sized": own | changes}), root)


def counts(config: Configuration) -> list[int]:
    return [variant.removed for variant in requests.list_variants(config)]


def measured(what: str, removed: list[str]) -> float:
    """Bytes with a cache of CONTEXT tokens, or parameters, of the model without some layers, as it really is."""
    model = materialise(tiny.model("gemma3_text"), {"units": removed} if removed else None)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if what == "parameters":
        return parameters
    with torch.no_grad():
        cache = model(tiny.tokens(1, CONTEXT), use_cache=True).past_key_values
    # A window of six keeps five between two tokens, and has six while it reads one.
    held = sum(
        (layer.keys.shape[-2] + (layer.keys.shape[-2] == 5)) * 2 * 2 * 8 for layer in cache.layers
    )
    return 2 * (parameters + held)


@pytest.mark.parametrize("what", ["memory", "parameters"])
def test_the_fewest_layers_go_with_which_every_plan_of_that_size_fits(
    what: str, root: Path
) -> None:
    # Layers 0, 2 and 4 have the small caches, and a plan may take these.
    left = [measured(what, units) for units in ([], ["0"], ["0", "2"], ["0", "2", "4"])]
    unit = "KB" if what == "memory" else "K"
    for gone in (1, 2, 3):
        for limit, expected in (
            (left[gone], gone),
            (left[gone] + 1, gone),
            (left[gone] - 1, gone + 1),
        ):
            config = study(root, {what: f"{limit / 1e3:.3f}{unit}", "context": CONTEXT})
            assert counts(config) == [expected]
    share = 100 * left[2] / left[0]
    assert counts(study(root, {what: f"{share + 0.01:.4f}%", "context": CONTEXT})) == [2]
    assert counts(study(root, {what: f"{share - 0.01:.4f}%", "context": CONTEXT})) == [3]


def test_each_form_is_a_number_of_units_said_with_what_is_left(root: Path) -> None:
    attention, mlp, _, norms, beside, _ = SHAPES["gemma3_text"]
    layer = attention + mlp + norms
    cached = [2 * 2 * 8 * held for held in (6, 6, 6, CONTEXT, CONTEXT)]
    whole, read = 5 * layer + beside, 5 * layer + sum(cached) + WORDS * C
    # Two layers by a number, by a share of the layers, of the parameters and of the time: one plan.
    forms = [2, "40%", {"parameters": "70%"}, {"latency": "72%", "context": CONTEXT}]
    assert counts(study(root, *forms)) == [2]
    config = study(
        root,
        {"parameters": "90%"},
        {"latency": "90%", "context": CONTEXT},
        selectors=["accuracy", "heads"],
    )
    assert counts(config) == [1, 2]
    expected = []
    for what, of, held in (
        ("parameters", whole, [0, 0]),
        (f"time of a token at {CONTEXT}", read, cached),
    ):
        shown = not held[0]
        guess = "" if shown else " by an estimate from shapes"
        lost_by = (
            ("1 of 5 layers", layer + held[0]),
            ("2 of 5 attention sub-layers", 2 * attention + sum(held[:2])),
        )
        for gone, lost in lost_by:
            amounts = f"{(of - lost) / 1e3:.3g} of {of / 1e3:.3g} K, " if shown else ""
            told = f"{amounts}{100 * (of - lost) / of:.3g} %{guess}."
            expected.append(f"tiny, 90% of the {what}: without {gone}, at most {told}")
    assert requests.describe_sizes(config) == expected
    assert load.load_configuration(copy.deepcopy(config.plain()), root) == config


def weights_of(removed: frozenset[str]) -> float:
    """Bytes of the weights of the tiny model in bfloat16 without some sub-layers, really cut."""
    model = materialise(tiny.model("gemma3_text"), {"units": sorted(removed)} if removed else None)
    return 2 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("order", [["half", "mostly_attention"], ["mostly_attention", "half"]])
def test_a_size_is_kept_by_every_selector_of_a_study(order: list[str], root: Path) -> None:
    """Two selectors whose sub-layers count by other costs need other numbers of units for the same bytes."""
    costs = {"half": 0.5, "mostly_attention": 0.9}
    raw: RawConfig = minimal_config()
    raw["models"]["tiny"] = {"source": "tiny", "dtype": "bfloat16"}
    chosen = {"metric": "perplexity", "strategy": "iterative", "units": "both"}
    for name, cost in costs.items():
        raw["selectors"][name] = chosen | {"cost": cost}
    study = {"models": ["tiny"], "calibrations": ["recall"], "selectors": order}
    whole = weights_of(frozenset())
    limit = 0.76 * whole
    study["removed"] = [{"memory": f"{limit / 1e3:.3f}KB", "context": 1}]
    config = load.load_configuration(set_key(raw, "studies", {"sized": study}), root)
    counts = {v.selector: v.removed for v in requests.list_variants(config) if v.model == "tiny"}
    assert counts["half"] < counts["mostly_attention"]

    # By brute force: the set of sub-layers that saves least of those that count enough.
    units = all_units(DEPTH, "both")
    saved = {unit: whole - weights_of(frozenset({unit})) for unit in units}
    cache = 2 * 2 * 2 * 8  # of one token in a layer, in bytes; it goes with the attention
    for name, cost in costs.items():
        price = {unit: cost if unit.endswith("attention") else 1 - cost for unit in units}
        sets = [frozenset(s) for n in range(len(units)) for s in combinations(units, n)]
        enough = [s for s in sets if sum(price[u] for u in s) >= counts[name] - 1e-9]
        lost = [sum(saved[u] + cache * u.endswith("attention") for u in s) for s in enough]
        assert whole + DEPTH * cache - min(lost) <= limit
    told = requests.describe_sizes(config)
    assert len(told) == 2 and all(f" by {name}: without" in " ".join(told) for name in costs)


REFUSED = [
    (
        {"parameters": "10%"},
        "10% of the parameters cannot be reached",
        "without them up to 9.9 of 41.2 K, 24 % are left",
    ),
    (
        {"parameters": "50M"},
        "leaves 'tiny' as it is (41.2 of 41.2 K, 100 %)",
        "Write a smaller size.",
    ),
    ({"memory": "6"}, "{'memory': '6'} is not allowed", "{memory: 6GB}"),
    ({"memory": "6GB", "latency": "50%"}, "is not allowed", "{latency: 80%}"),
    ({"latency": "5B"}, "is not allowed", "{latency: 80%}"),
    ({"weight": "50%"}, "is not allowed", "{parameters: 75%}"),
]


def test_a_size_that_cannot_be_is_refused_with_the_numbers(root: Path) -> None:
    for entry, *words in REFUSED:
        with pytest.raises(LaminaError, match=r"^studies[.]sized[.]removed") as caught:
            study(root, 1, entry)
        assert [word for word in words if word not in str(caught.value)] == []
    with pytest.raises(LaminaError, match="shapes of 'hub', which are read from a folder"):
        study(root, {"memory": "6GB"}, models=["hub"])


def test_a_dry_run_has_the_plans_of_all_sizes(root: Path) -> None:
    raw = minimal_config()
    raw["models"] = {"tiny": {"source": "tiny"}}
    removed = [1, {"parameters": "90%"}, {"memory": "70%"}, {"latency": "50%", "context": 64}]
    raw["studies"] = {"sized": raw["studies"]["prune"] | {"models": ["tiny"], "removed": removed}}
    (root / "sized.yaml").write_text(yaml.safe_dump(raw))
    (root / "resources").symlink_to(ROOT / "resources")
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-n",
        "--cores",
        "2",
        "--snakefile",
        str(ROOT / "Snakefile"),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--configfile", "sized.yaml"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    healed = re.findall(r"results/adapters/tiny/recall/accuracy/removed=(\d+)/", done.stdout)
    expected = {
        variant.removed for variant in requests.list_variants(load.load_configuration(raw, root))
    }
    assert {int(size) for size in healed} == expected == {1, 2, 3}

"""Sizes by memory, parameters and time: against hand counts and models that are really cut."""

import copy
import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from lamina.errors import LaminaError
from lamina.models import manifest, sizes
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study import requests
from tests import ROOT
from tests.families import configurations
from tests.given import tiny
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data
from tests.given.slow import slow_except

HIDDEN = 32
N_LAYERS = 5
VOCABULARY = tiny.VOCABULARY
CONTEXT = 20  # tokens
# Keys and values of one token in one layer: two heads of eight numbers each.
CACHED_PER_TOKEN = 2 * 2 * 8
# Query and output are as wide as the stream, keys and values have half of the heads.
ATTENTION = 3 * HIDDEN**2
MLP = 3 * HIDDEN * 48
EMBEDDING = VOCABULARY * HIDDEN


class HandCount(NamedTuple):
    """Numbers of parameters of a layer, and outside the layers."""

    attention: int
    mlp: int
    active_mlp: int  # what one token uses of it
    norms: int
    outside: int  # embeddings, head and final norm
    cached_tokens: list[int]  # by layer, of CONTEXT tokens

    @property
    def layer(self) -> int:
        return self.attention + self.mlp + self.norms

    @property
    def model(self) -> int:
        return N_LAYERS * self.layer + self.outside

    @property
    def cached_numbers(self) -> list[int]:
        """Numbers in the cache of each layer."""
        return [CACHED_PER_TOKEN * n_tokens for n_tokens in self.cached_tokens]


WHOLE_CONTEXT = [CONTEXT] * N_LAYERS
UNTIED = 2 * EMBEDDING + HIDDEN
TIED = EMBEDDING + HIDDEN
HAND_COUNTS = {
    "llama": HandCount(ATTENTION, MLP, MLP, 2 * HIDDEN, UNTIED, WHOLE_CONTEXT),
    "tied": HandCount(ATTENTION, MLP, MLP, 2 * HIDDEN, TIED, WHOLE_CONTEXT),
    "qwen2": HandCount(ATTENTION + 2 * HIDDEN, MLP, MLP, 2 * HIDDEN, UNTIED, WHOLE_CONTEXT),
    # One of two experts works for a token, and so does the router.
    "mixtral": HandCount(
        ATTENTION,
        2 * MLP + 2 * HIDDEN,
        MLP + 2 * HIDDEN,
        2 * HIDDEN,
        UNTIED,
        WHOLE_CONTEXT,
    ),
    # Every other layer looks back six tokens.
    "gemma3_text": HandCount(
        ATTENTION + 2 * 8, MLP, MLP, 4 * HIDDEN, TIED, [6, CONTEXT, 6, CONTEXT, 6]
    ),
}
GEMMA = HAND_COUNTS["gemma3_text"]


def save_model(name: str, folder: Path) -> None:
    if name == "tied":
        model = tiny.model("llama", tie_word_embeddings=True)
    else:
        model = tiny.model(name)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")


@pytest.fixture(params=HAND_COUNTS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hand_count(family: str) -> HandCount:
    return HAND_COUNTS[family]


@pytest.fixture
def model_sizes(family: str, tmp_path: Path) -> sizes.Sizes:
    """The sizes in float32 of a saved model, from its shapes."""
    save_model(family, tmp_path)
    return sizes.count_sizes(manifest.load_skeleton(tmp_path, "model", False), 4)


def test_parameters_are_those_that_a_hand_counts(
    hand_count: HandCount, model_sizes: sizes.Sizes
) -> None:
    model, saved = model_sizes.amounts("parameters", CONTEXT)

    sublayers = hand_count.attention + hand_count.mlp
    assert model == hand_count.model
    assert saved["layer"] == pytest.approx([hand_count.layer] * N_LAYERS)
    assert saved["attention"] == pytest.approx([hand_count.attention] * N_LAYERS)
    assert saved["mlp"] == pytest.approx([hand_count.mlp] * N_LAYERS)
    assert saved["both"] == pytest.approx([sublayers] * N_LAYERS)


def test_memory_is_weights_and_cache(hand_count: HandCount, model_sizes: sizes.Sizes) -> None:
    model, saved = model_sizes.amounts("memory", CONTEXT)

    layer_bytes = [4 * (hand_count.layer + cache) for cache in hand_count.cached_numbers]
    attention_bytes = [4 * (hand_count.attention + cache) for cache in hand_count.cached_numbers]
    sublayer_bytes = 4 * (hand_count.attention + hand_count.mlp)
    assert model == 4 * hand_count.model + 4 * sum(hand_count.cached_numbers)
    assert saved["layer"] == layer_bytes
    assert saved["attention"] == attention_bytes
    assert saved["mlp"] == [4 * hand_count.mlp] * N_LAYERS
    # MLPs that are worth a layer save no cache.
    assert saved["both"] == pytest.approx([sublayer_bytes] * N_LAYERS)


def test_the_time_of_a_token_is_what_it_reads(
    hand_count: HandCount, model_sizes: sizes.Sizes
) -> None:
    model, saved = model_sizes.amounts("latency", CONTEXT)

    active_layer = hand_count.attention + hand_count.active_mlp + hand_count.norms
    layer_bytes = [4 * (active_layer + cache) for cache in hand_count.cached_numbers]
    assert saved["layer"] == layer_bytes
    assert model == sum(layer_bytes) + 4 * EMBEDDING


@pytest.mark.parametrize("cost", ["parameters", "latency", 0.3])
def test_sublayers_worth_a_layer_save_at_least_the_worth_of_the_cheaper_kind(
    model_sizes: sizes.Sizes, cost: Any
) -> None:
    _, saved = model_sizes.amounts("latency", CONTEXT, cost)

    attention_share = model_sizes.share(cost)
    for layer in range(N_LAYERS):
        by_attentions = saved["attention"][layer] / attention_share
        by_mlps = saved["mlp"][layer] / (1 - attention_share)
        assert saved["both"][layer] == pytest.approx(min(by_attentions, by_mlps))


@pytest.mark.parametrize("family", ["llama", "tied", "qwen2"], indirect=True)
def test_no_cache_is_longer_than_the_context_of_the_model(
    hand_count: HandCount, model_sizes: sizes.Sizes
) -> None:
    _, saved = model_sizes.amounts("latency", 10**6, "latency")

    cache = CACHED_PER_TOKEN * int(model_sizes.longest)
    layer_bytes = 4 * (hand_count.attention + hand_count.mlp + cache)
    assert saved["both"] == pytest.approx([layer_bytes] * N_LAYERS)


def count_parameters(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


# Names of tensors that say nothing of attention (temporal_block, mamba, conv), fused maps, experts,
# other names of settings, and heads that differ by layer.
UNUSUAL_FAMILIES = [
    "recurrent_gemma",
    "jamba",
    "lfm2",
    "gpt2",
    "gptj",
    "codegen",
    "gpt_bigcode",
    "falcon",
    "deepseek_v3",
    "bamba",
    "phi3",
    "gpt_neo",
    "gemma4_unified_text",
]
EVERY_DAY = ("gpt2", "jamba", "falcon", "deepseek_v3", "gemma4_unified_text")


@pytest.mark.parametrize("family", slow_except(EVERY_DAY, UNUSUAL_FAMILIES))
def test_parameters_are_those_of_models_that_are_really_cut(family: str, tmp_path: Path) -> None:
    model = configurations.model(family).eval()
    model.save_pretrained(tmp_path)
    counted = sizes.count_sizes(manifest.load_skeleton(tmp_path, family, False), 4)

    n_parameters, saved = counted.amounts("parameters", CONTEXT)

    assert n_parameters == count_parameters(model)
    for kind, suffix in {"layer": "", "attention": ".attention", "mlp": ".mlp"}.items():
        for layer, n_saved in enumerate(saved[kind]):
            cut = materialise(model, {"units": [f"{layer}{suffix}"]})
            assert n_saved == n_parameters - count_parameters(cut), (kind, layer)


# It keeps its cache in its layers, where it cannot be counted.
CACHING_FAMILIES = [name for name in UNUSUAL_FAMILIES if name != "recurrent_gemma"]
SHORT = 5  # tokens, fewer than any window


def count_cache(counted: sizes.Sizes, n_tokens: int) -> list[float]:
    """Numbers in the cache of each layer."""
    layers = zip(counted.cached_numbers, counted.cached_tokens, strict=True)
    return [n_numbers * min(n_tokens, most_tokens) for n_numbers, most_tokens in layers]


@pytest.mark.parametrize("family", slow_except(EVERY_DAY, CACHING_FAMILIES))
def test_caches_are_those_of_models_that_really_run(family: str, tmp_path: Path) -> None:
    model = configurations.model(family).eval()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        cache = model(tiny.tokens(1, SHORT), use_cache=True).past_key_values
    cached_numbers = []
    for layer in cache.layers:
        if getattr(layer, "keys", None) is None:
            cached_numbers.append(0)
        else:
            cached_numbers.append(layer.keys.numel() + layer.values.numel())

    counted = sizes.count_sizes(manifest.load_skeleton(tmp_path, family, False), 4)

    assert cached_numbers == count_cache(counted, SHORT)
    # The default of 4,096 tokens exceeds the context of the model.
    longest = count_cache(counted, configurations.CONTEXT)
    n_bytes, _ = counted.amounts("memory", 4096)
    assert n_bytes == 4 * (count_parameters(model) + sum(longest))


def test_a_token_uses_the_chosen_experts_of_gemma_4() -> None:
    """They are stacked next to a dense MLP, under a setting of another name."""
    experts = {"num_experts": 16, "top_k_experts": 2, "moe_intermediate_size": 32}
    model = configurations.model("gemma4_text", enable_moe_block=True, **experts)

    counted = sizes.count_sizes(model, 4)

    for layer, whole, active in zip(
        layers_of(model), counted.parameters, counted.active_parameters, strict=True
    ):
        assert whole.mlp - active.mlp == count_parameters(layer.experts) * 14 / 16


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workplace with a tiny Gemma 3."""
    save_model("gemma3_text", tmp_path / "tiny")
    return write_model_and_data(tmp_path)


def configure_raw(removed: list[Any], **study: Any) -> RawConfig:
    """One study of the tiny model in bfloat16."""
    raw = minimal_config()
    raw["models"]["tiny"] = {"source": "tiny", "dtype": "bfloat16"}
    sized = {
        "models": ["tiny"],
        "calibrations": ["recall"],
        "selectors": ["accuracy"],
        "removed": removed,
    }
    return set_key(raw, "studies", {"sized": sized | study})


def configure(root: Path, *removed: Any, **study: Any) -> Configuration:
    return load_configuration(configure_raw(list(removed), **study), root)


def list_sizes(configuration: Configuration) -> list[int]:
    return [variant.removed for variant in requests.list_variants(configuration)]


@pytest.mark.parametrize("family", ["gpt2", "gptj", "codegen", "gpt_bigcode"])
def test_a_cache_longer_than_the_context_makes_no_size_reachable(family: str, root: Path) -> None:
    """A cache of 4,096 tokens would be many times that of the 128 that the model takes."""
    model = configurations.model(family)
    model.save_pretrained(root / "tiny")
    kilobytes = 2 * count_parameters(model) / 1e3

    [removed] = list_sizes(configure(root, {"memory": f"{kilobytes:.0f}KB"}))

    assert 0 < removed < N_LAYERS
    with pytest.raises(LaminaError, match="leaves 'tiny' as it is"):
        configure(root, {"memory": "1MB"})


def measure_parameters(removed: list[str]) -> float:
    """Parameters of the tiny model that is really cut."""
    return count_parameters(cut_gemma(removed))


def measure_memory(removed: list[str]) -> float:
    """Bytes in bfloat16 of the tiny model that is really cut, with a cache of CONTEXT tokens."""
    model = cut_gemma(removed)
    with torch.no_grad():
        cache = model(tiny.tokens(1, CONTEXT), use_cache=True).past_key_values
    lengths = [layer.keys.shape[-2] for layer in cache.layers]
    # A window of six keeps five between two tokens, and has six while it reads one.
    n_tokens = sum(6 if length == 5 else length for length in lengths)
    return 2 * (count_parameters(model) + CACHED_PER_TOKEN * n_tokens)


def cut_gemma(removed: list[str]) -> Any:
    return materialise(tiny.model("gemma3_text"), {"units": removed} if removed else None)


MEASURES = {"memory": (measure_memory, "KB"), "parameters": (measure_parameters, "K")}


@pytest.mark.parametrize("n_removed", [1, 2, 3])
@pytest.mark.parametrize("kind", MEASURES)
def test_the_fewest_layers_are_removed_with_which_every_plan_fits(
    kind: str, n_removed: int, root: Path
) -> None:
    measure, unit = MEASURES[kind]
    # These layers have the small caches, and a plan may remove them.
    size = measure(["0", "2", "4"][:n_removed])
    expected_sizes = {size: n_removed, size + 1: n_removed, size - 1: n_removed + 1}

    for limit, expected in expected_sizes.items():
        removed = {kind: f"{limit / 1e3:.3f}{unit}", "context": CONTEXT}
        assert list_sizes(configure(root, removed)) == [expected]


@pytest.mark.parametrize("kind", MEASURES)
def test_a_share_of_the_model_is_a_size(kind: str, root: Path) -> None:
    measure, _ = MEASURES[kind]
    percent = 100 * measure(["0", "2"]) / measure([])

    fits = {kind: f"{percent + 0.01:.4f}%", "context": CONTEXT}
    too_small = {kind: f"{percent - 0.01:.4f}%", "context": CONTEXT}

    assert list_sizes(configure(root, fits)) == [2]
    assert list_sizes(configure(root, too_small)) == [3]


def test_forms_of_one_size_are_one_plan(root: Path) -> None:
    """Two layers: by number, by shares of the layers, of the parameters and of the time."""
    by_time = {"latency": "72%", "context": CONTEXT}

    assert list_sizes(configure(root, 2, "40%", {"parameters": "70%"}, by_time)) == [2]


@pytest.fixture
def two_sizes(root: Path) -> Configuration:
    """90 % of the parameters and of the time, by layers and by attentions."""
    by_time = {"latency": "90%", "context": CONTEXT}
    selectors = ["accuracy", "heads"]
    return configure(root, {"parameters": "90%"}, by_time, selectors=selectors)


def test_a_size_is_described_by_what_is_left_of_it(two_sizes: Configuration) -> None:
    # Two layers of the small caches, of one layer and of two attentions.
    cache = CACHED_PER_TOKEN * 6
    numbers_read = N_LAYERS * GEMMA.layer + sum(GEMMA.cached_numbers) + EMBEDDING
    left = {
        "parameters without a layer": GEMMA.model - GEMMA.layer,
        "parameters without attentions": GEMMA.model - 2 * GEMMA.attention,
        "time without a layer": numbers_read - GEMMA.layer - cache,
        "time without attentions": numbers_read - 2 * (GEMMA.attention + cache),
    }

    lines = requests.describe_sizes(two_sizes)

    def describe_parameters(n_left: int) -> str:
        thousands = f"{n_left / 1e3:.3g} of {GEMMA.model / 1e3:.3g} K"
        return f"{thousands}, {100 * n_left / GEMMA.model:.3g} %."

    def describe_time(n_left: int) -> str:
        return f"{100 * n_left / numbers_read:.3g} % by an estimate from shapes."

    of_parameters = "tiny, 90% of the parameters: without"
    of_time = f"tiny, 90% of the time of a token at {CONTEXT}: without"
    by_layers = "1 of 5 layers, at most"
    by_attentions = "2 of 5 attention sub-layers, at most"
    assert lines == [
        f"{of_parameters} {by_layers} {describe_parameters(left['parameters without a layer'])}",
        f"{of_parameters} {by_attentions} "
        + describe_parameters(left["parameters without attentions"]),
        f"{of_time} {by_layers} {describe_time(left['time without a layer'])}",
        f"{of_time} {by_attentions} {describe_time(left['time without attentions'])}",
    ]


def test_a_configuration_with_its_sizes_counted_is_the_same(
    two_sizes: Configuration, root: Path
) -> None:
    assert load_configuration(copy.deepcopy(two_sizes.plain()), root) == two_sizes


def measure_weights(removed: frozenset[str]) -> float:
    """Bytes of the weights in bfloat16 of the tiny model that is really cut."""
    return 2 * count_parameters(cut_gemma(sorted(removed)))


ATTENTION_COSTS = {"half": 0.5, "mostly_attention": 0.9}


@pytest.fixture(params=["half first", "half last"])
def two_costs(request: pytest.FixtureRequest, root: Path) -> Configuration:
    """76 % of the weights, by two selectors whose sub-layers count by different costs."""
    order = sorted(ATTENTION_COSTS, reverse=request.param == "half last")
    limit = 0.76 * measure_weights(frozenset())
    removed = {"memory": f"{limit / 1e3:.3f}KB", "context": 1}
    raw = configure_raw([removed], selectors=order)
    for name, cost in ATTENTION_COSTS.items():
        raw["selectors"][name] = {
            "metric": "perplexity",
            "strategy": "iterative",
            "units": "both",
            "cost": cost,
        }
    return load_configuration(raw, root)


def test_a_size_is_kept_by_every_selector_of_a_study(two_costs: Configuration) -> None:
    """By brute force: the set of sub-layers that saves least of those that count enough."""
    model_bytes = measure_weights(frozenset())
    token_bytes = 2 * CACHED_PER_TOKEN  # in one layer; removed with its attention
    units = all_units(N_LAYERS, "both")
    saved_bytes = {unit: model_bytes - measure_weights(frozenset({unit})) for unit in units}
    for unit in units:
        if unit.endswith("attention"):
            saved_bytes[unit] += token_bytes
    n_removed = {
        variant.selector: variant.removed
        for variant in requests.list_variants(two_costs)
        if variant.model == "tiny"
    }

    assert n_removed["half"] < n_removed["mostly_attention"]
    for selector, attention_cost in ATTENTION_COSTS.items():
        least_saved = model_bytes
        for n_units in range(len(units)):
            for unit_set in combinations(units, n_units):
                n_attentions = sum(unit.endswith("attention") for unit in unit_set)
                n_mlps = n_units - n_attentions
                worth = n_attentions * attention_cost + n_mlps * (1 - attention_cost)
                if worth >= n_removed[selector] - 1e-9:
                    least_saved = min(least_saved, sum(saved_bytes[unit] for unit in unit_set))
        largest = model_bytes + N_LAYERS * token_bytes - least_saved
        assert largest <= 0.76 * model_bytes


def test_sizes_of_selectors_with_different_costs_are_described_apart(
    two_costs: Configuration,
) -> None:
    lines = requests.describe_sizes(two_costs)

    assert len(lines) == 2
    assert " by half: without" in "".join(lines)
    assert " by mostly_attention: without" in "".join(lines)


@pytest.mark.parametrize(("n_layers_room", "expected"), [(1.0, -1), (2.9, -2), (99.0, -N_LAYERS)])
def test_a_size_above_the_model_has_room_for_as_many_layers(
    root: Path, n_layers_room: float, expected: int
) -> None:
    """No block has more layers than there are."""
    parameters = GEMMA.model + n_layers_room * GEMMA.layer
    raw = configure_raw([{"parameters": f"{parameters / 1e3:.3f}K"}], selectors=["again"])
    raw["selectors"]["again"] = {"metric": "perplexity", "strategy": "repeat"}
    configuration = load_configuration(raw, root)

    assert list_sizes(configuration) == [expected]
    grown = (GEMMA.model - expected * GEMMA.layer) / 1e3
    [line] = requests.describe_sizes(configuration)
    assert f"with {-expected} layers more, at most {grown:.3g} of" in line


def test_a_size_without_room_for_a_layer_more_is_refused(root: Path) -> None:
    raw = configure_raw([{"latency": "101%"}], selectors=["again"])
    raw["selectors"]["again"] = {"metric": "perplexity", "strategy": "repeat"}

    with pytest.raises(
        LaminaError, match=r"no room for another layer: with one more, 'tiny' takes up"
    ):
        load_configuration(raw, root)


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        (
            {"parameters": "10%"},
            [
                "10% of the parameters cannot be reached",
                "without them up to 9.9 of 41.2 K, 24 % are left",
            ],
        ),
        (
            {"parameters": "50M"},
            ["leaves 'tiny' as it is (41.2 of 41.2 K, 100 %)", "Write a smaller size."],
        ),
        ({"memory": "6"}, ["{'memory': '6'} is not allowed", "{memory: 6GB}"]),
        ({"memory": "6GB", "latency": "50%"}, ["is not allowed", "{latency: 80%}"]),
        ({"latency": "5B"}, ["is not allowed", "{latency: 80%}"]),
        ({"weight": "50%"}, ["is not allowed", "{parameters: 75%}"]),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_the_numbers(
    root: Path, removed: RawConfig, words: list[str]
) -> None:
    with pytest.raises(LaminaError, match=r"^studies\.sized\.removed") as caught:
        configure(root, 1, removed)

    for word in words:
        assert word in str(caught.value)


def test_a_size_in_memory_of_a_model_that_is_not_on_disk_is_refused(root: Path) -> None:
    with pytest.raises(LaminaError, match="shapes of 'hub', which can only be read from a folder"):
        configure(root, 1, {"memory": "6GB"}, models=["hub"])


@pytest.mark.slow
def test_a_dry_run_has_the_plans_of_all_sizes(root: Path) -> None:
    by_time = {"latency": "50%", "context": 64}
    raw = configure_raw(
        [1, {"parameters": "90%"}, {"memory": "70%"}, by_time],
        repairs=["none", "ghost"],
        healings=["none", "lora"],
    )
    raw["models"] = {"tiny": {"source": "tiny"}}
    (root / "sized.yaml").write_text(yaml.safe_dump(raw))
    (root / "resources").symlink_to(ROOT / "resources")
    snakefile = ["--snakefile", str(ROOT / "workflow/Snakefile"), "--configfile", "sized.yaml"]

    process = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--cores", "2", *snakefile],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stdout + process.stderr
    adapter = r"results/adapters/tiny/recall/accuracy/removed=(\d+)/"
    healed_sizes = {int(size) for size in re.findall(adapter, process.stdout)}
    assert healed_sizes == {1, 2, 3}
    assert healed_sizes == set(list_sizes(load_configuration(raw, root)))

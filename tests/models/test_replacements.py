"""Layers of siblings: in a pass as in a built variant, merged, chosen, refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import PreTrainedModel

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.models import replacements
from lamina.models.digests import describe_files
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.selection.plans import Plan, PlanRequest, ScoredUnit, StepEvidence
from lamina.selection.strategies import evolutionary
from lamina.selection.strategies import replacements as steps
from lamina.selection.strategies.evolutionary import Evolutionary
from lamina.selection.trials import Search, Trials
from lamina_workflow.checks.load import load_configuration
from tests import ROOT
from tests.given import tiny
from tests.given.cut_models import NEAR_TIE, naive_loglikelihoods, random_samples


def saved(folder: Path, **models: PreTrainedModel) -> dict[str, dict[str, Any]]:
    """Records of these models, each in a folder with the tokenizer."""
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    digests = {name: describe_files(folder / name)["weights_sha256"] for name in models}
    return {
        name: {"path": str(folder / name), "weights_sha256": digest, "trust_remote_code": False}
        for name, digest in digests.items()
    }


def cut(
    base: PreTrainedModel, units: list[str], records: dict[str, dict[str, Any]]
) -> PreTrainedModel:
    return materialise(base, {"units": units, "replacements": records})


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt_neox", "bloom"])
def test_a_pass_with_donors_equals_the_model_whose_layers_were_put_in_by_hand(
    family: str, tmp_path: Path
) -> None:
    """Replaced, dropped and both, two donors at one layer, several changes at once; weights are copied by hand."""
    base, samples = tiny.model(family), random_samples(1, count=5)
    others = {name: tiny.model(family, seed=seed) for name, seed in (("math", 1), ("code", 2))}
    records = saved(tmp_path, **others)
    sets = [
        ["2.@math"],
        ["2.@code"],
        ["0", "2.@math"],
        ["1.@code", "2.@math", "4"],
        ["4.@math", "3"],
    ]
    units = sorted({unit for each in sets for unit in each if "@" in unit})
    wanted = [Candidate(), *(Candidate(frozenset(each)) for each in sets)]
    with sweep.open_session(
        base, samples, 2000, False, replacements.replacement_layers(base, units, records)
    ) as session:
        session.measure(range(len(samples)), {candidate: candidate for candidate in wanted})
    found = session.scores.loglikelihood
    for each, candidate in zip([[], *sets], wanted, strict=True):
        mine = tiny.model(family)
        for unit in each:
            layer, _, name = unit.partition(".@")
            if name:
                layers_of(mine)[int(layer)].load_state_dict(
                    layers_of(others[name])[int(layer)].state_dict()
                )
        expected = naive_loglikelihoods(mine, samples, [unit for unit in each if "@" not in unit])
        assert np.abs(found[session.scores.index[candidate]] - expected).max() < NEAR_TIE, each
        if each:
            built = cut(base, each, records)
            assert np.abs(naive_loglikelihoods(built, samples) - expected).max() < NEAR_TIE, each


def test_a_donor_equal_to_the_base_and_a_weight_of_zero_change_no_bit(tmp_path: Path) -> None:
    base, ids = tiny.model(), tiny.tokens()
    records = saved(tmp_path, same=tiny.model(), math=tiny.model(seed=1))
    records |= {
        "nothing": {"of": ["math", "same"], "weight": 0.0},
        "some": {"of": ["math", "same"], "weight": 0.25},
    }
    expected = base(ids).logits
    for name in ("same", "nothing"):
        units = [f"{layer}.@{name}" for layer in range(5)]
        built = cut(base, units, records)
        assert torch.equal(built(ids).logits, expected)
        with sweep.open_session(
            base,
            samples := random_samples(1, 3),
            2000,
            False,
            replacements.replacement_layers(base, units, records),
        ) as on:
            everyone = {
                "none": Candidate(),
                **{unit: Candidate(frozenset({unit})) for unit in units},
            }
            on.measure(range(len(samples)), everyone)
        # One row more in a batch may round otherwise; nothing else may differ.
        assert np.abs(on.scores.loglikelihood - on.scores.loglikelihood[:1]).max() < 1e-5
    assert not torch.equal(cut(base, ["2.@some"], records)(ids).logits, expected)
    (module,) = replacements.replacement_layers(base, ["2.@some"], records).values()
    mine, theirs = (
        dict(layers_of(model)[2].named_parameters()) for model in (base, tiny.model(seed=1))
    )
    for key, weight in module.named_parameters():
        assert torch.allclose(weight, mine[key] + 0.25 * (theirs[key] - mine[key]))
    assert torch.equal(base(ids).logits, expected), "the base is as it was"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"intermediate_size": 64}, "mlp.*is .* there"),
        ({"depth": 4}, "layers.4"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, "rope_parameters"),
        ({"seed": 1}, "tokenizer"),
    ],
)
def test_a_donor_of_another_shape_or_with_other_positions_or_tokens_is_refused(
    change: dict, words: str, tmp_path: Path
) -> None:
    base = tiny.model()
    records = saved(tmp_path, base=base, math=tiny.model(seed=1), other=tiny.model(**change))
    manifest = records["base"] | {"source": "base"}
    replacements.check_siblings(base, manifest, {"math": records["math"]})
    if "seed" in change:
        found = tiny.tokenizer()
        found.add_tokens(["w60"])
        found.save_pretrained(tmp_path / "other")
    with pytest.raises(LaminaError, match=f"donors.other: .*{words}"):
        replacements.check_siblings(base, manifest, {"other": records["other"]})


def test_a_step_drops_the_least_relevant_layer_and_takes_the_best_replacement_that_gains() -> None:
    request = PlanRequest(1, "layer", 4, frozenset({3}), 0)
    empty = Plan("m", "c", "s", 0, "accuracy", "iterative", "layer")
    ranked = [
        ScoredUnit("3.@a", -0.4),
        ScoredUnit("1.@a", -0.3),
        ScoredUnit("2.@b", -0.2),
        ScoredUnit("1", 0.1),
        ScoredUnit("2", 0.2),
        ScoredUnit("0", 0.3),
        ScoredUnit("0.@a", 0.4),
    ]
    first = steps.choose(request, StepEvidence(ranked, 0.8, {"1": 0.7, "2.@b": 0.9}), empty)
    assert first.units == ["1", "2.@b"] and first.scores == [0.1, -0.2]
    assert first.accuracy_before == [0.8, 0.8] and first.accuracy_after == [0.7, 0.9]
    # The next step drops the replaced layer: its replacement goes with it. No replacement gains.
    assert steps.units(["0", "2", "3"], first.units, ["a", "b"])[3:] == [
        "0.@a",
        "0.@b",
        "2.@a",
        "3.@a",
        "3.@b",
    ]
    second = steps.choose(
        PlanRequest(2, "layer", 4, frozenset(), 0),
        StepEvidence([ScoredUnit("2", 0.0), ScoredUnit("0", 1), ScoredUnit("0.@a", 0.0)]),
        first,
    )
    assert second.units == ["1", "2"] and second.removed == 2
    # Another donor takes the place of the first one.
    other = steps.choose(
        PlanRequest(2, "layer", 4, frozenset(), 0),
        StepEvidence([ScoredUnit("2.@a", -0.1), ScoredUnit("0", 0), ScoredUnit("2", 1)]),
        first,
    )
    assert other.units == ["1", "0", "2.@a"]
    records = {"a": {"path": "x"}, "b": {"of": ["a"], "weight": 1.0}, "c": {"path": "y"}}
    assert set(steps.with_records(first, records).replacements) == {"a", "b"}


def test_a_patch_repairs_what_is_dropped_and_not_what_is_replaced() -> None:
    assert find_runs(["2", "3.@math", "4"], 6) == [(2, 3), (4, 5)]


def test_the_configuration_names_what_is_wrong_with_donors() -> None:
    raw = yaml.safe_load((ROOT / "tests/configs/tiny.yaml").read_text(encoding="utf-8"))
    raw["donors"] = {
        "math": {"source": "resources/reference"},
        "both": {"of": ["math"], "weight": 0.25},
    }
    raw["selectors"]["given"] = {"metric": "accuracy", "donors": ["math", "both"]}
    loaded = load_configuration(raw, ROOT)
    assert loaded.models["math"].layers == 12
    assert load_configuration(loaded.plain(), ROOT) == loaded
    given = {"metric": "accuracy", "donors": ["math"]}
    for section, name, change, words in (
        (
            "selectors",
            "given",
            given | {"donors": ["maths"]},
            "selectors.given.donors: 'maths' is not defined",
        ),
        (
            "selectors",
            "given",
            given | {"metric": "cosine"},
            "selectors.given.metric: 'cosine' has no value for a layer",
        ),
        ("selectors", "given", given | {"units": "mlp"}, "whole layers"),
        ("donors", "both", {"of": ["both"]}, "donors.both.of: 'both' is not a sibling"),
        ("donors", "math", {"source": "nowhere"}, "donors.math.source: there is no folder"),
        (
            "donors",
            "reference",
            {"source": "elsewhere/model", "revision": "x"},
            "another model under `models`",
        ),
    ):
        with pytest.raises(LaminaError, match=words):
            load_configuration(raw | {section: raw[section] | {name: change}}, ROOT)


def losses(candidates: list[Candidate], numbers: Any) -> np.ndarray:
    """Dropping layer l costs 1 + l; a's layer 2 gains .5 and its layer 3 .25, b's lose. Dropped after it was replaced,
    a layer costs what it always does."""
    gains = {"2.@a": -0.5, "3.@a": -0.25}
    cost = {str(layer): 1.0 + layer for layer in range(5)}
    sums = [sum((cost | gains).get(unit, 0.1) for unit in one.removed) for one in candidates]
    return np.repeat(np.array(sums)[:, None], len(list(numbers)), axis=1)


class Summed:
    """What measures: a function of sets."""

    def measure_losses(self, candidates: Any, numbers: Any) -> np.ndarray:
        return losses(list(candidates), numbers)


def test_a_search_finds_the_best_replacements_beside_the_best_removals() -> None:
    options = Evolutionary(metric="accuracy", generations=60, donors=["a", "b"])
    search = Search(options.strategy, Trials(Summed(), 8), np.arange(8), np.full(8, 5000))
    found = evolutionary.find(search, [str(layer) for layer in range(5)], [1, 2], options)
    assert found[2].removed == {"0", "1", "2.@a", "3.@a"}
    assert (
        len([unit for unit in found[1].removed if "@" not in unit]) == 1 and "0" in found[1].removed
    )
    for row in search.rows:
        layers = [unit.split(".")[0] for unit in row["units"]]
        assert len(set(layers)) == len(layers), "a layer is dropped, or has one donor"
        assert row["removed"] == sum("@" not in unit for unit in row["units"])

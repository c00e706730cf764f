"""Layers of sibling models: measured, built, chosen and refused.

Numbers are compared with models into which the donors' weights were copied by hand.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from lamina.models import digests
from lamina.models.digests import describe_files
from lamina.models.materialise import materialise
from lamina.models.replacements import check_siblings, replacement_layers
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.selection.strategies import rearrange
from lamina.selection.strategies.rearrange import Rearrange
from lamina.selection.trials import Search, Trials
from lamina_workflow.checks.load import load_configuration
from tests import ROOT
from tests.families import trials
from tests.given import tiny
from tests.given.variants import compute_logits

Records = dict[str, dict[str, Any]]


def save_donors(folder: Path, **models: PreTrainedModel) -> Records:
    """Write each model with the tokenizer; returns the records of these donors."""
    records: Records = {}
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
        records[name] = {
            "path": str(folder / name),
            "weights_sha256": describe_files(folder / name)["weights_sha256"],
            "trust_remote_code": False,
        }
    return records


def build_variant(base: PreTrainedModel, units: Sequence[str], records: Records) -> PreTrainedModel:
    return materialise(base, {"units": list(units), "replacements": records})


def measure_sets(
    base: PreTrainedModel, unit_sets: Sequence[Sequence[str]], records: Records
) -> list[np.ndarray]:
    """Log-likelihoods of all rows of the samples, with each set of units, from one session."""
    samples = trials.samples()
    candidates = {index: Candidate(frozenset(units)) for index, units in enumerate(unit_sets)}
    all_units = sorted(set().union(*unit_sets))
    layers = replacement_layers(base, all_units, records)
    with sweep.open_session(base, samples, 2000, False, layers) as session:
        session.measure(range(len(samples)), candidates)
    scores = session.scores
    return [scores.loglikelihood[scores.index[index]] for index in candidates]


def score_by_hand(
    family: str, units: Sequence[str], donors: Mapping[str, PreTrainedModel]
) -> np.ndarray:
    """The same with the donors' weights copied into a model whose removed layers are bypassed."""
    model = tiny.model(family)
    layers = layers_of(model)
    removed_units = []
    for unit in units:
        layer_index, _, source = unit.partition("=")
        if source:
            donor, _, donor_index = source.partition(":")
            donor_layer = layers_of(donors[donor])[int(donor_index)]
            layers[int(layer_index)].load_state_dict(donor_layer.state_dict())
        else:
            removed_units.append(unit)
    rows = [row for sample in trials.samples() for row in sample.rows]
    with trials.bypassed(layers, removed_units):
        return trials.scored(model, rows).numpy()


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt_neox", "bloom"])
def test_layers_of_donors_are_those_that_were_copied_by_hand(family: str, tmp_path: Path) -> None:
    """Replaced, removed and both, two donors at one layer, several changes at once."""
    base = tiny.model(family)
    donors = {"math": tiny.model(family, seed=1), "code": tiny.model(family, seed=2)}
    records = save_donors(tmp_path, **donors)
    unit_sets = [
        [],
        ["2=math:2"],
        ["2=code:2"],
        ["0", "2=math:2"],
        ["1=code:1", "2=math:2", "4"],
        ["1=math:3"],
        ["4=math:4", "3"],
    ]

    measured_scores = measure_sets(base, unit_sets, records)

    rows = [row for sample in trials.samples() for row in sample.rows]
    for units, measured in zip(unit_sets, measured_scores, strict=True):
        expected = score_by_hand(family, units, donors)
        assert np.abs(measured - expected).max() < 1e-4, units
        if units:
            built = trials.scored(build_variant(base, units, records), rows).numpy()
            assert np.abs(built - expected).max() < 1e-4, units


def test_a_donor_equal_to_the_base_changes_no_bit(tmp_path: Path) -> None:
    """A copy of the base, and a merge that takes nothing from the other model."""
    base = tiny.model()
    token_ids = tiny.tokens()
    records = save_donors(tmp_path, same=tiny.model(), math=tiny.model(seed=1))
    units = [f"{layer_index}=same:{layer_index}" for layer_index in range(5)]

    built = build_variant(base, units, records)
    single_units = [[unit] for unit in units]
    measured_scores = measure_sets(base, [[]] + single_units, records)

    assert torch.equal(compute_logits(built, token_ids), compute_logits(base, token_ids))
    # One row more in a batch may round otherwise; nothing else may differ.
    for scores in measured_scores:
        assert np.abs(scores - measured_scores[0]).max() < 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": 64}, "mlp.*is .*, but .* in the model"),
        ({"depth": 4}, "layers.4"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, "rope_parameters"),
    ],
)
def test_a_donor_of_another_shape_or_with_other_positions_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    base = tiny.model()
    records = save_donors(tmp_path, base=base, other=tiny.model(**changes))
    manifest = records["base"] | {"source": "base"}
    with pytest.raises(LaminaError, match=f"donors.other: .*{message}"):
        check_siblings(base, manifest, {"other": records["other"]})


def test_a_donor_whose_files_have_their_old_times_is_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny.model()
    donor = tiny.model(seed=1)
    records = save_donors(tmp_path, math=donor)
    records["math"] |= describe_files(tmp_path / "math")
    monkeypatch.setattr(digests, "describe_files", lambda _: pytest.fail("the files are hashed"))

    variant = build_variant(base, ["2=math:2"], records)

    expected = layers_of(donor)[2].state_dict()
    for name, weight in layers_of(variant)[2].state_dict().items():
        assert torch.equal(weight, expected[name])


def test_a_donor_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    base = tiny.model()
    records = save_donors(tmp_path, base=base, math=tiny.model(seed=1))
    manifest = records["base"] | {"source": "base"}
    check_siblings(base, manifest, {"math": records["math"]})

    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["w60"])
    tokenizer.save_pretrained(tmp_path / "math")
    with pytest.raises(LaminaError, match="donors.math: .*tokenizer"):
        check_siblings(base, manifest, {"math": records["math"]})


def test_a_patch_repairs_what_is_removed_and_not_what_is_replaced() -> None:
    assert find_runs(["2", "3=math:3", "4"], 6) == [(2, 3), (4, 5)]


@pytest.fixture
def raw_configuration() -> dict[str, Any]:
    """A configuration with a donor, and a selector that uses it."""
    text = (ROOT / "tests/configs/tiny.yaml").read_text(encoding="utf-8")
    raw = yaml.safe_load(text)
    raw["donors"] = {
        "math": {"source": "resources/reference"},
    }
    raw["selectors"]["swapping"] = {
        "strategy": "rearrange",
        "metric": "accuracy",
        "donors": ["math"],
    }
    return raw


def test_the_configuration_knows_donors(raw_configuration: dict[str, Any]) -> None:
    configuration = load_configuration(raw_configuration, ROOT)
    assert configuration.models["math"].layers == 12
    assert load_configuration(configuration.plain(), ROOT) == configuration


@pytest.mark.parametrize(
    ("section", "name", "entry", "message"),
    [
        (
            "selectors",
            "swapping",
            {"strategy": "rearrange", "metric": "accuracy", "donors": ["maths"]},
            "selectors.swapping.donors: 'maths' is not defined",
        ),
        ("donors", "both", {"of": ["math"]}, "donors.both.of: there is no such key"),
        ("donors", "math", {"source": "nowhere"}, "donors.math.source: there is no folder"),
        (
            "donors",
            "reference",
            {"source": "elsewhere/model", "revision": "x"},
            "another model under `models`",
        ),
    ],
)
def test_the_configuration_names_what_is_wrong_with_donors(
    raw_configuration: dict[str, Any],
    section: str,
    name: str,
    entry: dict[str, Any],
    message: str,
) -> None:
    raw_configuration[section][name] = entry
    with pytest.raises(LaminaError, match=message):
        load_configuration(raw_configuration, ROOT)


SEARCH_OPTIONS = Rearrange(metric="accuracy", donors=["a", "b"])


class AdditiveLosses:
    """Measures sets of units whose losses add up.

    Removing layer l costs 1 + l, also if it was replaced before. Donor a gains 0.5 at layer 2 and
    0.25 at layer 3; all other replacements cost 0.1.
    """

    LOSSES = {"0": 1.0, "1": 2.0, "2": 3.0, "3": 4.0, "4": 5.0, "2=a:2": -0.5, "3=a:3": -0.25}

    def measure_losses(
        self, candidates: Iterable[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        n_samples = len(list(sample_indices))
        rows: list[list[float]] = []
        for candidate in candidates:
            loss = sum(self.LOSSES.get(unit, 0.1) for unit in candidate.edits)
            rows.append([loss] * n_samples)
        return np.array(rows)


@pytest.fixture(scope="module")
def search() -> Search:
    """A search on eight samples."""
    trials_of_sets = Trials(AdditiveLosses(), 8)
    return Search(SEARCH_OPTIONS.strategy, trials_of_sets, np.arange(8))


@pytest.fixture(scope="module")
def best_sets(search: Search) -> dict[int, Candidate]:
    """The best sets without one and without two layers."""
    return rearrange.find(search, ["0", "1", "2", "3", "4"], [1, 2], SEARCH_OPTIONS)


def test_a_search_finds_the_best_replacements_with_the_best_removals(
    best_sets: dict[int, Candidate],
) -> None:
    assert best_sets[1].edits == {"0", "2=a:2", "3=a:3"}
    assert best_sets[2].edits == {"0", "1", "2=a:2", "3=a:3"}

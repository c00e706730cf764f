"""Linear probes, against a plain logistic regression and on a label planted at a layer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import PreTrainedModel

from lamina.data import files
from lamina.diagnosis import probe
from lamina.diagnosis.probe import LabelledText, Probe
from lamina.errors import LaminaError
from lamina.models.structure import layers_of
from tests.diagnosis.examples import rows_by_measure
from tests.given import tiny

N_BOUNDARIES = 6


class PlantedLabel:
    """Hooks that add a direction to the stream after a layer, signed by the input's label."""

    def __init__(self, model: PreTrainedModel, samples: list[LabelledText], layer: int) -> None:
        self.signs = {tuple(token_ids): 1 if label == "a" else -1 for token_ids, label in samples}
        self.direction = 40 * torch.randn(32, generator=torch.Generator().manual_seed(1))
        self.batch_signs: list[int] = []
        model.base_model.register_forward_pre_hook(self.read_inputs, with_kwargs=True)
        layers_of(model)[layer].register_forward_hook(self.plant)

    def read_inputs(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        token_ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.batch_signs = [self.signs[tuple(line)] for line in token_ids.tolist()]

    def plant(self, module: Any, args: Any, output: Any) -> None:
        stream = output[0] if isinstance(output, tuple) else output
        for line, sign in enumerate(self.batch_signs):
            stream[line] += sign * self.direction


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_label_planted_at_a_layer_is_read_from_there_on(family: str) -> None:
    model = tiny.model(family)
    sequences = tiny.tokens(120, 7).tolist()
    labels = ["a", "b"] * 60
    samples = list(zip(sequences, labels, strict=True))
    first_boundary = 3
    PlantedLabel(model, samples, first_boundary - 1)

    rows = rows_by_measure(probe.diagnose(model, samples, Probe(file="x"), 200), "probe")

    assert rows["depth_90", None]["value"] == first_boundary
    for boundary in range(N_BOUNDARIES):
        row = rows["accuracy", boundary]
        assert (row["value"] > 0.95) == (boundary >= first_boundary)
        assert row["n_samples"] == 120
        assert row["ci_low"] <= row["value"] <= row["ci_high"] + 1e-9
        assert abs(row["control"] - 0.5) < 0.3
        selectivity = rows["selectivity", boundary]["value"]
        assert selectivity == pytest.approx(row["value"] - row["control"])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_probe_is_a_logistic_regression_on_standardised_streams(family: str) -> None:
    model = tiny.model(family)
    sequences = [tiny.tokens(1, 4 + index % 3, seed=index)[0].tolist() for index in range(50)]
    labels = np.array(["odd" if token_ids[-1] % 2 else "even" for token_ids in sequences])
    samples = list(zip(sequences, labels, strict=True))
    options = Probe(file="x", folds=4, seed=2)

    rows = rows_by_measure(probe.diagnose(model, samples, options, 40), "probe")

    folds = probe.assign_folds(sequences, labels, options)
    assert_equal_shares(labels, folds, options.folds)
    streams_by_text = [
        tiny.stream(model, torch.tensor([token_ids]), layers_of(model)) for token_ids in sequences
    ]
    for boundary in (0, 4):
        last_tokens = np.stack([streams[boundary][0, -1] for streams in streams_by_text])
        n_right = 0
        for fold in range(options.folds):
            is_test = folds == fold
            mean = last_tokens[~is_test].mean(0)
            deviation = last_tokens[~is_test].std(0)
            standardised = (last_tokens - mean) / deviation
            regression = LogisticRegression(C=probe.INVERSE_RIDGE, max_iter=300)
            regression.fit(standardised[~is_test], labels[~is_test])
            predicted_labels = regression.predict(standardised[is_test])
            n_right += int((predicted_labels == labels[is_test]).sum())
        assert rows["accuracy", boundary]["value"] == pytest.approx(n_right / len(labels))


def assert_equal_shares(labels: np.ndarray, folds: np.ndarray, n_folds: int) -> None:
    """The numbers of samples of a label in the folds differ by one at most."""
    for label in set(labels.tolist()):
        fold_sizes = np.bincount(folds[labels == label], minlength=n_folds)
        assert fold_sizes.max() - fold_sizes.min() <= 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "w1"}, "line 7: `label` is missing"),
        ({"text": 3, "label": "a"}, "line 7: `text` is missing or not a text"),
        ({"text": "w1", "label": "c"}, "only 1 of 'c'"),
    ],
)
def test_a_wrong_line_of_labelled_texts_is_refused(
    tmp_path: Path, line: dict[str, Any], message: str
) -> None:
    right_lines = [{"text": f"w{index}", "label": "ab"[index % 2]} for index in range(6)]
    all_lines = [json.dumps(fields) for fields in [*right_lines, line]]
    file = tmp_path / "labelled.jsonl"
    file.write_text("\n".join(all_lines) + "\n")

    with pytest.raises(LaminaError, match=message):
        files.read_labelled(file, "diagnoses.p.file", 3)


def test_inputs_longer_than_the_context_are_refused() -> None:
    """Rotary positions would go on beyond it without a word."""
    model = tiny.model(max_position_embeddings=6)
    samples = [(tiny.tokens(1, 7, seed=index)[0].tolist(), "ab"[index % 2]) for index in range(20)]
    with pytest.raises(LaminaError, match="diagnosis probe, file: 7 tokens are more than .* 6"):
        probe.diagnose(model, samples, Probe(file="x"), 200)

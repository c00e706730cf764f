"""Concept depth: at which layer a linear probe can read a label of the input [arXiv 2404.07066].

A label that the last token alone reveals can be read at boundary 0; one that layers must compute
can be read only later. A probe of many channels also fits meaningless labels, so the control is the
same probe on shuffled labels.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lamina.data import files
from lamina.data.splitting import index_documents, split_documents
from lamina.diagnosis.rows import DiagnosisRow, make_row
from lamina.options.diagnoses import Diagnosis
from lamina.options.entry import UserPath, option, seed_option

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from lamina.engine.taps import Batch


class Probe(Diagnosis):
    """From which depth a label of the input can be read off the stream.

    Logistic regression reads the last token.

    One line of the file is one input: `{"text": "3 4 + 1 2 =", "label": "even"}`.
    """

    FILED = True

    kind: Literal["probe"] = "probe"
    file: UserPath = option("A .jsonl file of your own with `text` and `label` in each line.")
    folds: int = option(
        "Folds of the cross-validation, each with the labels in equal shares.", 5, ge=2, le=20
    )
    seed: int = seed_option()


LabelledText = tuple[Sequence[int], str]
"""The token ids of an input, and its label."""

INVERSE_RIDGE = 0.1  # scikit-learn's C of the logistic regression, on standardised channels
MAX_ITERATIONS = 300
DEPTH_SHARE = 0.9  # of the way from guessing to the best boundary, for `depth_90`


def read_samples(
    path: Path, tokenizer: PreTrainedTokenizerBase, options: Probe
) -> list[LabelledText]:
    """Labelled inputs from a file of JSON lines; `files.read_labelled` says what is refused."""
    from lamina.data.calibrations import encode_document

    lines = files.read_labelled(path, "diagnosis probe, file", options.folds)
    return [(encode_document(tokenizer, text), label) for text, label in lines]


def diagnose(
    model: PreTrainedModel, samples: Sequence[LabelledText], options: Probe, token_budget: int
) -> list[DiagnosisRow]:
    """Rows for the boundaries 0 … L, `layer` being the boundary.

    `accuracy` : share of inputs whose label logistic regression predicts from the standardised
        stream at the last token. Each is predicted by a probe fitted on the other folds. The
        control is the same on shuffled labels.
    `selectivity` : accuracy minus that on the shuffled labels, paired over inputs.
    `depth_90` : first boundary whose accuracy (lower end of its interval) is at least nine tenths
        of the way from the share of the most frequent label to the best boundary; null if there is
        none. Layer null.

    Raises LaminaError if an input is longer than the model's context.
    """
    import numpy as np

    from lamina.engine import taps
    from lamina.models.checkpoint import check_fits, stated_context
    from lamina.models.structure import layers_of

    sequences = [token_ids for token_ids, _ in samples]
    longest = max(len(token_ids) for token_ids in sequences)
    model_context = stated_context(model.config.to_dict())
    check_fits("diagnosis probe, file", longest, model_context, str(model.config.name_or_path))
    labels = np.array([label for _, label in samples])
    (document_indices,) = index_documents([sequences])
    shuffled_labels = _shuffle_labels(labels, document_indices, options.seed)

    n_boundaries = len(layers_of(model)) + 1
    last_tokens = LastTokenStreams(len(samples), n_boundaries)
    taps.run_sequences(model, sequences, range(n_boundaries), last_tokens.add_batch, token_budget)

    folds = assign_folds(sequences, labels, options)
    shuffled_folds = assign_folds(sequences, shuffled_labels, options)
    accuracies = []
    for boundary in range(n_boundaries):
        stream = last_tokens.at_boundary(boundary)
        is_right = cross_validate(stream, labels, folds)
        is_right_shuffled = cross_validate(stream, shuffled_labels, shuffled_folds)
        accuracies.append(BoundaryAccuracy(boundary, is_right, is_right_shuffled, document_indices))
    diagnosis_rows = []
    for boundary_accuracy in accuracies:
        diagnosis_rows += boundary_accuracy.rows()
    return [*diagnosis_rows, _find_depth(accuracies, labels)]


@dataclass(frozen=True)
class BoundaryAccuracy:
    """How often a probe predicts the label at one boundary, with true and with shuffled labels."""

    boundary: int
    is_right: np.ndarray  # (samples,), 1.0 or 0.0
    is_right_shuffled: np.ndarray
    document_indices: Sequence[int]  # (samples,)

    @property
    def accuracy(self) -> float:
        """The share of samples whose label is predicted correctly."""
        return float(self.is_right.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy. Copies of a document count once."""
        from lamina.relevance.statistics import wilson_interval

        n_documents = len(set(self.document_indices))
        return wilson_interval(self.accuracy * n_documents, n_documents)

    def rows(self) -> list[DiagnosisRow]:
        """The rows `accuracy` and `selectivity`."""
        import numpy as np

        from lamina.relevance.statistics import bootstrap_ratios

        n_samples = len(self.is_right)
        ci_low, ci_high = self.interval
        accuracy_row: DiagnosisRow = {
            "measure": "accuracy",
            "layer": self.boundary,
            "value": self.accuracy,
            "ci_low": ci_low,
            "ci_high": ci_high,
            "n_samples": n_samples,
            "control": float(self.is_right_shuffled.mean()),
        }
        gains = (self.is_right - self.is_right_shuffled)[:, None]
        (selectivity,) = bootstrap_ratios(gains, np.ones(n_samples), self.document_indices)
        return [accuracy_row, make_row("selectivity", selectivity, self.boundary)]


def _find_depth(boundaries: Sequence[BoundaryAccuracy], labels: np.ndarray) -> DiagnosisRow:
    """The row `depth_90`."""
    guessing_accuracy = max(Counter(labels.tolist()).values()) / len(labels)
    best_accuracy = max(boundary.accuracy for boundary in boundaries)
    threshold = guessing_accuracy + DEPTH_SHARE * (best_accuracy - guessing_accuracy)
    deep_enough = [
        float(boundary.boundary) for boundary in boundaries if boundary.interval[0] >= threshold
    ]
    return {
        "measure": "depth_90",
        "value": deep_enough[0] if deep_enough else None,
        "n_samples": len(labels),
    }


class LastTokenStreams:
    """The stream of each sample's last token at all boundaries, in float32."""

    def __init__(self, n_samples: int, n_boundaries: int) -> None:
        self.n_boundaries = n_boundaries
        self.vectors: list[np.ndarray | None] = [None] * n_samples  # (boundaries, C) each

    def add_batch(self, batch: Batch, streams: Mapping[float, torch.Tensor]) -> None:
        """Keep the last tokens of a batch, given the streams at all boundaries."""
        import torch

        last_positions = batch.real.sum(1) - 1
        lines = torch.arange(len(last_positions), device=last_positions.device)
        last_tokens = [
            streams[boundary][lines, last_positions].float()
            for boundary in range(self.n_boundaries)
        ]
        vectors = torch.stack(last_tokens, 1).cpu().numpy()
        for sample_index, sample_vectors in zip(batch.samples, vectors, strict=True):
            self.vectors[sample_index] = sample_vectors

    def at_boundary(self, boundary: int) -> np.ndarray:
        """The stream at a boundary, (samples, C)."""
        import numpy as np

        return np.stack([vectors[boundary] for vectors in self.vectors if vectors is not None])


def _shuffle_labels(labels: np.ndarray, document_indices: Sequence[int], seed: int) -> np.ndarray:
    """The labels of the documents in random order. Copies of a document get one label."""
    import numpy as np

    _, first_samples = np.unique(document_indices, return_index=True)
    shuffled_labels = np.random.default_rng(seed).permutation(labels[first_samples])
    return np.asarray(shuffled_labels[document_indices])


def assign_folds(
    sequences: Sequence[Sequence[int]], labels: np.ndarray, options: Probe
) -> np.ndarray:
    """The fold of every input, (samples,).

    Folds are drawn by document, and each has the same share of every label.
    """
    import numpy as np

    purpose = f"diagnosis probe has {options.folds} `folds`, each with documents of every label"
    samples_by_label = [
        np.flatnonzero(labels == label).tolist() for label in sorted(set(labels.tolist()))
    ]
    sequences_by_label = []
    for label_samples in samples_by_label:
        sequences_by_label.append([sequences[index] for index in label_samples])
    fold_sizes = partial(_split_evenly, n_folds=options.folds)
    folds_by_label = split_documents(
        sequences_by_label, fold_sizes, options.seed, options.folds, purpose
    )

    fold_of_sample = np.empty(len(labels), dtype=int)
    for label_samples, label_folds in zip(samples_by_label, folds_by_label, strict=True):
        fold_of_sample[label_samples] = label_folds
    return fold_of_sample


def _split_evenly(count: int, n_folds: int) -> list[int]:
    """The sizes of folds of `count` documents; the first ones have one more."""
    return [count // n_folds + (fold < count % n_folds) for fold in range(n_folds)]


def cross_validate(stream: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """1.0 for every input whose label is predicted by the probe fitted on the other folds.

    The probe reads the stream (samples, C).
    """
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = LogisticRegression(C=INVERSE_RIDGE, max_iter=MAX_ITERATIONS)
    probe_pipeline = make_pipeline(StandardScaler(), regression)
    with warnings.catch_warnings():
        # If a label can be read without error, its weights grow without limit; the predictions stay
        # the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        predicted_labels = cross_val_predict(
            probe_pipeline, stream, labels, cv=PredefinedSplit(folds)
        )
    return np.asarray(predicted_labels == labels, float)

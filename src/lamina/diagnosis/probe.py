"""At which depth a label of the input can be read off the stream with a linear probe (concept depth, arXiv 2404.07066).

A label that the last token alone shows is read at boundary 0; one that layers must compute is read later.
A probe of many channels also reads labels that mean nothing, so the same probe on shuffled labels stands beside it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.configuration import Diagnosis
from lamina.config.entry import Place, option, seed_option
from lamina.data import files
from lamina.data.splitting import documents, parts

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from lamina.engine import taps


class Probe(Diagnosis):
    """From which depth a label of the input can be read off the stream, by logistic regression on the last token.

    One line of the file is one input: `{"text": "3 4 + 1 2 =", "label": "even"}`.
    """

    FILED = True

    kind: Literal["probe"] = "probe"
    file: Place = option("A .jsonl file of your own with `text` and `label` in each line.")
    folds: int = option(
        "Folds of the cross-validation, each with the labels in equal shares.", 5, ge=2, le=20
    )
    strength: float = option(
        "Inverse strength of the probe's ridge, on standardised channels.", 0.1, gt=0
    )
    seed: int = seed_option()


Labelled = tuple[Sequence[int], str]
"""The token ids of an input, and its label."""


def read(path: Path, tokenizer: PreTrainedTokenizerBase, options: Probe) -> list[Labelled]:
    """Labelled inputs from a file of JSON lines. `lamina.data.files.labelled` says which files are refused."""
    from lamina.data.calibrations import encode

    lines = files.labelled(path, "diagnosis probe, file", options.folds)
    return [(encode(tokenizer, text), label) for text, label in lines]


def diagnose(
    model: PreTrainedModel, given: Sequence[Labelled], options: Probe, tokens: int
) -> list[dict[str, Any]]:
    """Rows of table `diagnoses` for the boundaries 0 … L, `layer` being the boundary.

    `accuracy` : share of inputs whose label logistic regression reads off the standardised stream at the last token,
        each by a probe that was fitted on other folds. The control is the same on shuffled labels.
    `selectivity` : accuracy less that of the shuffled labels, paired over inputs.
    `depth_90` : first boundary whose accuracy (lower end of its interval) is at least nine tenths of the way from the
        share of the most frequent label to the best boundary; null if there is none. Layer null.
    """
    import numpy as np
    import torch

    from lamina.engine import taps
    from lamina.models.structure import layers_of
    from lamina.relevance.statistics import ratios, wilson_interval

    depth, sequences, labels = (
        len(layers_of(model)),
        [ids for ids, _ in given],
        np.array([label for _, label in given]),
    )
    last: dict[int, list[Any]] = {}

    def add(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        places = batch.real.sum(1) - 1
        lines = torch.arange(len(places), device=places.device)
        vectors = (
            torch.stack([streams[place][lines, places].float() for place in range(depth + 1)], 1)
            .cpu()
            .numpy()
        )
        last.update(zip(batch.samples, vectors, strict=True))

    taps.run(model, sequences, range(depth + 1), add, tokens)
    streams = np.stack([last[number] for number in range(len(labels))], 1)
    (copies,) = documents([sequences])
    different, places = np.unique(copies, return_index=True)
    # Copies of a text get one label in the shuffle too.
    mixed = np.random.default_rng(options.seed).permutation(labels[places])[copies]
    asked = [(target, _folds(sequences, target, options)) for target in (labels, mixed)]
    rows, read_at = list[dict[str, Any]](), []
    for boundary, stream in enumerate(streams):
        right, chance = (_right(stream, target, folds, options) for target, folds in asked)
        low, high = wilson_interval(float(right.mean()) * len(different), len(different))
        (gain,) = ratios((right - chance)[:, None], np.ones(len(labels)), copies)
        at = {"layer": boundary, "n_samples": len(labels)}
        accuracy = {
            "value": float(right.mean()),
            "ci_low": low,
            "ci_high": high,
            "control": float(chance.mean()),
        }
        rows += [at | {"measure": "accuracy"} | accuracy, at | {"measure": "selectivity"} | gain]
        read_at.append((float(right.mean()), low))
    share = max(Counter(labels.tolist()).values()) / len(labels)
    bar = share + 0.9 * (max(value for value, _ in read_at) - share)
    first = next((float(boundary) for boundary, (_, low) in enumerate(read_at) if low >= bar), None)
    return [*rows, {"measure": "depth_90", "value": first, "n_samples": len(labels)}]


def _folds(sequences: Sequence[Sequence[int]], labels: np.ndarray, options: Probe) -> np.ndarray:
    """The fold of every input, drawn by document, with each label in equal shares."""
    import numpy as np

    places = [np.flatnonzero(labels == label).tolist() for label in sorted(set(labels.tolist()))]
    purpose = f"diagnosis probe has {options.folds} `folds`, each with documents of every label"

    def equal(count: int) -> list[int]:
        return [
            count // options.folds + (fold < count % options.folds) for fold in range(options.folds)
        ]

    by_label = [[sequences[place] for place in group] for group in places]
    folds = np.empty(len(labels), dtype=int)
    folds[np.concatenate(places)] = np.concatenate(
        parts(by_label, equal, options.seed, options.folds, purpose)
    )
    return folds


def _right(stream: np.ndarray, labels: np.ndarray, folds: np.ndarray, options: Probe) -> np.ndarray:
    """1.0 for every input whose label a probe fitted on other folds reads off its stream (inputs, C)."""
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(C=options.strength, max_iter=300))
    with warnings.catch_warnings():
        # A perfectly readable label has no best weights, but the predictions stay the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(
            cross_val_predict(probe, stream, labels, cv=PredefinedSplit(folds)) == labels, float
        )

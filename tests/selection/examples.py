"""What tests of searches share: losses without a model, small calibrations and options."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lamina.data.calibrations import CalibrationSamples, build_calibration
from lamina.engine.candidates import Candidate
from lamina.options.repairs import Repair
from lamina.selection.trials import Search, Trials
from tests.given.cut_models import random_samples

KEYS = {"model": "m", "calibration": "c", "selector": "s"}
UNITS = [str(layer) for layer in range(10)]
N_SAMPLES = 40
RIDGE = 0.01


class ToyLosses:
    """Losses that are a function of the removed units and the sample.

    Units interact, so that removing the least relevant one at a time does not find the best set.
    """

    def __init__(self, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.single_effects = generator.uniform(0, 1, 10)
        self.pair_effects = np.triu(generator.normal(0, 0.5, (10, 10)), 1)
        self.noise = generator.normal(0, 0.3, (N_SAMPLES, 10))
        self.measured: list[tuple[frozenset[str], int]] = []
        """The removed units and the sample of every measurement, in order."""

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        indices = list(sample_indices)
        losses: list[np.ndarray] = []
        for candidate in candidates:
            self.measured += [(candidate.edits, index) for index in indices]
            losses.append(self.sample_losses(candidate.edits)[indices])
        return np.array(losses)

    def sample_losses(self, removed_units: Iterable[str]) -> np.ndarray:
        """The loss of each sample, (samples,)."""
        layers = sorted(int(unit) for unit in removed_units)
        single_loss = self.single_effects[layers].sum()
        pair_loss = self.pair_effects[np.ix_(layers, layers)].sum()
        return 10 + single_loss + pair_loss + self.noise[:, layers].sum(axis=1)

    def mean_loss(self, removed_units: Iterable[str], n_samples: int = N_SAMPLES) -> float:
        return float(self.sample_losses(removed_units)[:n_samples].mean())


def toy_search(toy: Any, log: Path | None = None) -> Search:
    """A search that may ask for the toy's losses on all samples."""
    trials = Trials(toy, N_SAMPLES, log)
    return Search("x", trials, np.arange(N_SAMPLES))


def ghost_options(**options: Any) -> Any:
    return Repair.from_options({"method": "ghost", "ridge": RIDGE, **options})


def random_calibration(n_samples: int = 24, seed: int = 0) -> CalibrationSamples:
    samples = random_samples(seed, count=n_samples)
    return build_calibration(samples, 100, source="test", split="test", seed=0)

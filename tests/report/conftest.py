"""The made-up studies that several files of tests read."""

from pathlib import Path

import pytest

from tests.given.plausible_tables import write_study


@pytest.fixture(scope="session")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of two models, two calibrations and two sizes, the larger one healed."""
    folder = tmp_path_factory.mktemp("two_models")
    write_study(
        folder,
        n_layers=6,
        calibrations=("recall", "facts"),
        sizes=(1, 2),
        healed_size=2,
        n_test=40,
        models=("a", "b"),
        tested_passes=(1, 3),
    )
    return folder

"""A sweep shared between jobs gives the rows of one job."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.cluster import Clone
from tests.slurm.tables import differences

SWEEP = "sweeps/reference/recall/base/removal/layer/removed=0.parquet"


# Tests of faults compare two blocks with one job in passing.
@pytest.mark.slow
@pytest.mark.parametrize("blocks", [2, 4])
def test_blocks_gather_to_the_rows_of_one_job(
    fresh: Callable[[], Clone], undisturbed: Path, blocks: int
) -> None:
    made = fresh()
    config = made.folder / made.config
    config.write_text(config.read_text().replace("blocks: 2", f"blocks: {blocks}"))
    assert made.run("relevance") == 0, made.log()[-8000:]
    assert len([job for job in made.jobs() if "sweep_units" in job.what]) == blocks
    assert differences(made.folder / "results" / SWEEP, undisturbed / SWEEP) == []

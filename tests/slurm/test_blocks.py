"""A sweep that is split into jobs has the rows of one job."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.cluster import Clone
from tests.slurm.tables import differences

SWEEP = "sweeps/reference/recall/base/removal/layer/removed=0.parquet"


# Every day, tests of faults compare two blocks with one job.
@pytest.mark.slow
@pytest.mark.parametrize("n_blocks", [2, 4])
def test_blocks_gather_to_the_rows_of_one_job(
    copy_clone: Callable[[], Clone], undisturbed_results: Path, n_blocks: int
) -> None:
    clone = copy_clone()
    config = clone.folder / clone.config
    config.write_text(config.read_text().replace("blocks: 2", f"blocks: {n_blocks}"))

    exit_status = clone.run("relevance")

    assert exit_status == 0, clone.read_logs()[-8000:]
    assert len(clone.list_sweeps()) == n_blocks
    assert differences(clone.folder / "results" / SWEEP, undisturbed_results / SWEEP) == []

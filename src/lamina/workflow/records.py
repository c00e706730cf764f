"""What tells that an output is fresh where Snakemake's own records of it are gone: what its job was told, in the file.

Without a record, as after `.snakemake` was deleted, Snakemake compares nothing but times, so that what was made with
other options or other code would count as fresh.
"""

from pathlib import Path
from typing import Any

from snakemake.persistence import ParamsChange, PersistenceBase

from lamina import seal

_recorded, _changed = PersistenceBase.has_metadata, PersistenceBase.params_changed


def follow_files() -> None:
    """Let Snakemake look into the files that it has no records of."""
    PersistenceBase.has_metadata = lambda self, job: _recorded(self, job) or _differ(job)
    PersistenceBase.params_changed = _params_changed


def _params_changed(self: PersistenceBase, job: Any, file: Any = None) -> Any:
    if _recorded(self, job) or not _differ(job):
        return _changed(self, job, file)
    return ParamsChange({"what its files say, or nothing"}, {"what the job is told"}, set(job.output))


def _differ(job: Any) -> bool:
    """Whether a job's files were made by one that was told something else, or do not say what theirs was told."""
    there = [file for file in job.output if Path(file).exists()]
    told = getattr(job.params, "job", None)
    if not there or told is None:
        return False
    found = {seal.told(file) for file in there if Path(file).is_file()} - {None}
    return found != {seal.hashed(told)}

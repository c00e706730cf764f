"""The files themselves say whether an output is fresh if Snakemake's own records of it are gone.

Without a record, as after `.snakemake` was deleted, Snakemake only compares times, so that files of other options or
other code would count as fresh. Each file holds a hash of what its job was told, which is compared here.
"""

from pathlib import Path
from typing import Any

from snakemake.persistence import ParamsChange, PersistenceBase

from lamina.store import checksum as seal

_recorded, _changed = PersistenceBase.has_metadata, PersistenceBase.params_changed


def follow_files() -> None:
    """Let Snakemake look into files for which it has no records."""
    PersistenceBase.has_metadata = lambda self, job: _recorded(self, job) or _differ(job)
    PersistenceBase.params_changed = _params_changed


def _params_changed(self: PersistenceBase, job: Any, file: Any = None) -> Any:
    if _recorded(self, job) or not _differ(job):
        return _changed(self, job, file)
    return ParamsChange({"what its files say, or nothing"}, {"what the job is told"}, set(job.output))


def _differ(job: Any) -> bool:
    """Whether a job's files were made by a job that was told something else, or do not say what it was told."""
    existing = [file for file in job.output if Path(file).exists()]
    text = getattr(job.params, "job", None)
    if not existing or text is None:
        return False
    hashes = {seal.told(file) for file in existing if Path(file).is_file()} - {None}
    return hashes != {seal.hashed(text)}

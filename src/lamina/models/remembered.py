"""What the jobs of a run found out about its models, kept beside the run so that no other job pays for it again."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(".snakemake/lamina-models")  # in a run's folder; outside of a run nothing is kept


def recall(about: str, stamp: str) -> Any | None:
    """The value kept about something under the same stamp; None if there is none."""
    try:
        known, value = json.loads(_place(about).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    return value if known == stamp else None


def keep(about: str, stamp: str, found: Any) -> None:
    """Keep a value about something, which JSON can hold; it replaces the earlier one."""
    if FOLDER.parent.is_dir():
        place = _place(about)
        place.parent.mkdir(exist_ok=True)
        temporary = place.with_name(f"{place.name}.{os.getpid()}")
        temporary.write_text(json.dumps([stamp, found]), encoding="utf-8")
        temporary.replace(place)


def _place(about: str) -> Path:
    return FOLDER / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.json"

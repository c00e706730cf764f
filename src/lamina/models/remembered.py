"""What the jobs of a run found out about its models, kept beside the run so that no other job pays for it again."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(".snakemake/lamina-models")  # of a run's folder; without one every process finds out for itself


def recall(about: str, stamp: str) -> Any | None:
    """What was kept about something while its stamp was this; None if nothing was."""
    try:
        known, found = json.loads(_place(about).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    return found if known == stamp else None


def keep(about: str, stamp: str, found: Any) -> None:
    """Keep what JSON can hold about something, in the place of what was kept before."""
    if FOLDER.parent.is_dir():
        place = _place(about)
        place.parent.mkdir(exist_ok=True)
        temporary = place.with_name(f"{place.name}.{os.getpid()}")
        temporary.write_text(json.dumps([stamp, found]), encoding="utf-8")
        temporary.replace(place)


def _place(about: str) -> Path:
    return FOLDER / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.json"

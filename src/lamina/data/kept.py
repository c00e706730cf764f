"""Packages cache what they read of local files. This module keeps them from using the cache of another file.

`datasets` caches a file by its name and time, so that a new file with the time of an earlier one (copied with `cp -p`,
unpacked from an archive) would be read as the earlier one. It caches what a task's function made of documents by the
function's name, so that an edit would change nothing. Python caches compiled modules by the size and second of their
file.
"""

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
from datasets import data_files

_by_time = data_files._get_single_origin_metadata


def by_content() -> None:
    """From here on, `datasets` knows a local file by the hash of what it holds, and calls functions anew."""
    data_files._get_single_origin_metadata = _origin
    datasets.disable_caching()


@contextmanager
def compiled_anew() -> Iterator[None]:
    """While open, imported modules are compiled anew from their files."""
    before = sys.pycache_prefix
    with tempfile.TemporaryDirectory() as folder:
        sys.pycache_prefix = folder
        try:
            yield
        finally:
            sys.pycache_prefix = before


def _origin(data_file: str, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    path = Path(data_file)
    if not path.is_file():
        return tuple(_by_time(data_file, *args, **kwargs))
    with path.open("rb") as file:
        return (hashlib.file_digest(file, "sha256").hexdigest(),)

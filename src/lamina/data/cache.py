"""Packages cache what they read of local files. This module keeps them from using the cache of another file.

`datasets` caches a file by its name and time, so that a new file with the time of an earlier one (copied with `cp -p`,
unpacked from an archive) would be read as the earlier one. It caches what a task's function made of documents by the
function's name, so that an edit would change nothing. Python caches compiled modules by the size and second of their
file.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets

LOCAL = ("arrow", "csv", "json", "parquet", "text")  # builders of `datasets` that read files

datasets.disable_caching()
_folders: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends: data sets map their files


@contextmanager
def read_anew() -> Iterator[None]:
    """While open, `datasets` has an empty cache, so that it reads files anew."""
    before = datasets.config.HF_DATASETS_CACHE
    _folders.append(tempfile.TemporaryDirectory())
    datasets.config.HF_DATASETS_CACHE = Path(_folders[-1].name)
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


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

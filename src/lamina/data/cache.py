"""Local files are read as what they hold, not as what an earlier file of their name and time held.

`datasets` caches files by name and time, and results of functions by their name; Python modules by size and second.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import datasets

LOCAL = ("arrow", "csv", "json", "parquet", "text")  # builders of `datasets` that read files
DATA, MODULES = (datasets.config, "HF_DATASETS_CACHE"), (sys, "pycache_prefix")  # settings that name a cache's folder

datasets.disable_caching()
_folders: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends: data sets map their files


@contextmanager
def read_anew(cache: tuple[Any, str]) -> Iterator[None]:
    """While open, a cache is an empty folder."""
    before = getattr(*cache)
    _folders.append(tempfile.TemporaryDirectory())
    setattr(*cache, _folders[-1].name)
    try:
        yield
    finally:
        setattr(*cache, before)

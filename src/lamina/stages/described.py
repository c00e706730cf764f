"""What a rule asks of its jobs: functions of the wildcards, as Snakemake calls them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from snakemake.io import ancient

from lamina.config.configuration import Configuration
from lamina.stages.job import Job

J = TypeVar("J", bound=Job)

# Snakemake asks for a job several times within a short time. The cache must not keep a large graph of jobs.
RECENT = 4096


@dataclass(frozen=True)
class Described(Generic[J]):
    """Functions for the directives of a rule: `of` gives the job, the others ask the job."""

    of: Callable[[Any], J]
    inputs: Callable[[Any], dict[str, Any]]
    told: Callable[[Any], str]
    memory: Callable[[Any, Any, int], int]
    minutes: Callable[[Any, Any, int], int]


def described(kind: type[J], config: Configuration, **facts: str) -> Described[J]:
    """The functions of a rule whose jobs are of class `kind`.

    `facts` of the run that are in no configuration, such as the names of its files, reach the jobs like wildcards.
    """

    @lru_cache(RECENT)
    def made(place: tuple[tuple[str, str], ...]) -> J:
        return kind.of(config, Place(place, **facts))

    def of(w: Any) -> J:
        return made(tuple(w.items()))

    # They take `input`, because Snakemake accepts a missing file only from functions that do.
    def memory(w: Any, input: Any, attempt: int) -> int:
        return int(of(w).memory(attempt))  # type: ignore[attr-defined]

    def minutes(w: Any, input: Any, attempt: int) -> int:
        return int(of(w).minutes(attempt))  # type: ignore[attr-defined]

    def inputs(w: Any) -> dict[str, Any]:
        # Jobs wait for the check of their model, and follow the code that it checks by their own fingerprints.
        return {name: ancient(file) if name == "check" else file for name, file in of(w).inputs.items()}

    return Described(of, inputs, lambda w: of(w).told(), memory, minutes)


class Place(dict[str, str]):
    """Wildcards, by attribute and by key."""

    __getattr__ = dict.__getitem__

"""Section `studies`: what is run, by the names of the other sections."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lamina.config.entry import Choice, Spelt, option
from lamina.config.explain import wrong
from lamina.config.metrics import MetricName
from lamina.config.selectors import Units, check_halves, units_option
from lamina.errors import LaminaError


def _share(text: str) -> str:
    if not re.fullmatch(r"[0-9]+([.][0-9]+)?%", text) or not Fraction(text.rstrip("%")):
        raise ValueError
    return text


Names = list[str]
Removed = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[str, AfterValidator(_share)],
    Spelt,
    Field(
        json_schema_extra={"x-allowed": "a number of units of at least 1, or a share of the model's layers such as 25%"}
    ),
]


def removed_count(entry: int | str, n_layers: int | None) -> int:
    """An entry of `removed` as a number of units: a share is taken of the layers, rounded down, at least 1."""
    if isinstance(entry, int):
        return entry
    if n_layers is None:
        raise LaminaError(f"removed: '{entry}' is a share of an unknown number of layers. Write layers: N.")
    return max(1, int(n_layers * Fraction(entry.rstrip("%")) / 100))


class Study(Choice):
    """Every model of the list on every calibration. A study of maps lists `metrics`, a study of pruning `selectors` and
    `removed`; one that lists `diagnoses` alone removes nothing.
    """

    models: Names = option("Names of models.", min_length=1)
    calibrations: Names = option("Names of calibrations.", min_length=1)
    diagnoses: Names = option("Names of diagnoses of the unpruned models.", [])

    @classmethod
    def tag(cls, value: Any) -> str | None:
        """As for any choice; diagnoses alone make a study of maps."""
        looks = isinstance(value, Mapping) and "diagnoses" in value and not cls.marked(value)
        return Maps.title() if looks else super().tag(value)


class Maps(Study):
    """How relevant every unit of the unpruned models is, by several metrics."""

    MARKS = ("metrics",)

    metrics: list[MetricName] = option(
        "Relevance metrics of the unpruned model's units. Needed, except with `diagnoses`.", []
    )
    units: Units = units_option()

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.metrics and not self.diagnoses:
            raise wrong("[] is not allowed. Write a list of metrics (as for a selector), or diagnoses.", "metrics")
        check_halves(self.units, self.metrics)
        return self


class Prune(Study):
    """Variants: every selector at every size, with every repair and healing, and what is measured on them."""

    MARKS = ("selectors", "removed")

    selectors: Names = option("Names of selectors.", min_length=1)
    removed: list[Removed] = option(
        "How many units are removed, as a number or as a share of the model's layers (`25%`, rounded down, at least "
        "1).",
        min_length=1,
    )
    repairs: Names = option("Names of repairs; `none` leaves the damage as it is.", ["none"], min_length=1)
    healings: Names = option("Names of healings; `none` trains nothing.", ["none"], min_length=1)
    tasks: Literal["all", "own"] | Names = option(
        "Benchmark tasks to measure, `all` of them, only the calibration's `own`, or a list of names.",
        "all",
        allowed="all, own, or a list of names under benchmarks.tasks",
    )
    perplexity: Literal["all"] | Names = option(
        "Perplexity texts to measure, `all` of them or a list of names.",
        "all",
        allowed="all, or a list of names under benchmarks.perplexity",
    )

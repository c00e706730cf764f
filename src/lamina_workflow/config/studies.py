"""Section `studies`: what is run. A study refers to the other sections by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lamina.models.sizes import DEFAULT_CONTEXT
from lamina.options.entry import Choice, Name, Spelt, option
from lamina.options.explain import invalid
from lamina.options.metrics import MetricName
from lamina.options.selectors import Units, check_share, units_option

# The possible endings of a size's number, apart from %, by the resource that the size limits.
_SCALES: Mapping[str, Mapping[str, float]] = {
    "memory": {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    "parameters": {"K": 1e3, "M": 1e6, "B": 1e9},
    "latency": {},
}
# Other units of memory in which a size may be written.
_BINARY_SCALES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_LIMITED = {
    "memory": "memory at {:,} tokens",
    "parameters": "the parameters",
    "latency": "the time of a token at {:,}",
}


class Size(BaseModel):
    """The most that may be left of one resource; the fewest units that reach it are removed.

    A selector that adds layers adds the most that stay within it.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    memory: str | None = None
    parameters: str | None = None
    latency: str | None = None
    context: Annotated[int, Field(ge=1)] = DEFAULT_CONTEXT

    @model_validator(mode="after")
    def _check_one_limit(self) -> Self:
        limits = [self.memory, self.parameters, self.latency]
        if limits.count(None) != 2 or not self.limit(1):
            raise ValueError
        return self

    @property
    def what(self) -> str:
        """`memory`, `parameters` or `latency`."""
        return next(what for what in _SCALES if getattr(self, what) is not None)

    def limit(self, whole: float) -> float:
        """The most that may be left if the base model takes `whole`; 0 if it cannot be read."""
        scales = {**_SCALES[self.what], "%": whole / 100}
        if self.what == "memory":
            scales |= _BINARY_SCALES
        factors = {unit.lower(): factor for unit, factor in scales.items()}
        pattern = rf"([0-9]+(?:[.][0-9]+)?)\s*({'|'.join(factors)})"
        written = getattr(self, self.what).strip().lower()
        match = re.fullmatch(pattern, written)
        if match is None:
            return 0.0
        return float(match[1]) * factors[match[2]]

    def __str__(self) -> str:
        return f"{getattr(self, self.what)} of {_LIMITED[self.what].format(self.context)}"

    def share(self, left: float, whole: float) -> str:
        """What is left of the whole, in words: `5.8 of 7.1 GB, 82 %`."""
        percentage = f"{100 * left / whole:.3g} %"
        fitting = [(scale, unit) for unit, scale in _SCALES[self.what].items() if scale <= whole]
        if not fitting:
            return percentage
        scale, unit = fitting[-1]
        return f"{left / scale:.3g} of {whole / scale:.3g} {unit}, {percentage}"


@dataclass(frozen=True)
class ReachedSize:
    """What a `Size` means for one selector on one model."""

    n_removed: int
    left: float
    """The most that is left, in bytes or parameters, whichever units a plan removes."""
    whole: float
    """The bytes or parameters of the base model."""


def read_percentage(value: object) -> object:
    """Convert a share written as a percentage to a number; everything else is unchanged."""
    if not isinstance(value, str) or not value.strip().endswith("%"):
        return value
    percentage = value.strip().removesuffix("%").strip()
    if not percentage.replace(".", "", 1).isdigit():
        return value
    return float(percentage) / 100


_AsPercentage = BeforeValidator(read_percentage, json_schema_input_type=float | str)


class Gate(BaseModel):
    """What a variant must reach on a task or a text: a share of the base model's score, or a
    value.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    task: Name
    keep: Annotated[float, Field(gt=0, le=1), _AsPercentage] | None = None
    """Least share of the base model's score."""
    floor: Annotated[float, Field(gt=0), _AsPercentage] | None = None
    """Least value of the task's main metric."""

    @model_validator(mode="after")
    def _check_one_limit(self) -> Self:
        if (self.keep is None) == (self.floor is None):
            raise ValueError
        return self


_GATE_ALLOWED = (
    "a task and what must be reached on it: {task: NAME, keep: 90%} of the base model's score, or "
    "{task: NAME, floor: 0.5}"
)
_REMOVED_ALLOWED = (
    "a number of units such as 3, 0 or -2, a share of the model's layers such as 25%, or a size: "
    "{memory: 6GB}, {parameters: 75%} or {latency: 80%}"
)
Names = list[Name]
Removed = Annotated[
    int | Annotated[str, AfterValidator(check_share)] | Size,
    Spelt,
    Field(json_schema_extra={"x-allowed": _REMOVED_ALLOWED}),
]

Gates = list[Annotated[Gate, Spelt, Field(json_schema_extra={"x-allowed": _GATE_ALLOWED})]]


class Study(Choice):
    """Runs every listed model on every listed calibration.

    A study of relevance maps lists `metrics`. A pruning study lists `selectors` and `removed`. A
    study that lists only `diagnoses` removes nothing.
    """

    models: Names = option("Names of models.", min_length=1)
    calibrations: Names = option("Names of calibrations.", min_length=1)
    diagnoses: Names = option("Names of diagnoses of the base models.", [])

    @classmethod
    def tag(cls, value: Any) -> str | None:
        """The title of the kind, as for any choice; diagnoses alone make a study of maps."""
        if isinstance(value, Mapping) and "diagnoses" in value and not cls.marked(value):
            return Maps.title()
        return super().tag(value)


class Maps(Study):
    """Relevance of every unit of the base models, by several metrics."""

    MARKS = ("metrics",)

    metrics: list[MetricName] = option(
        "Relevance metrics of the base model's units. Needed unless there are `diagnoses`.", []
    )
    units: Units = units_option()

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        if not self.metrics and not self.diagnoses:
            raise invalid(
                "[] is not allowed. Write a list of metrics (as for a selector), or diagnoses.",
                "metrics",
            )
        return self


class Prune(Study):
    """Variants: every selector at every size, with every repair and healing.

    The benchmarks are measured on all of them.
    """

    MARKS = ("selectors", "removed")

    selectors: Names = option("Names of selectors.", min_length=1)
    removed: list[Removed] = option(
        "How many units are removed: a number, a share of the model's layers (`25%`, rounded "
        "down, at least 1), or a size. A size limits what is left; each model loses the fewest "
        "units that reach it. `{memory: 6GB}`: weights and KV cache of one sequence of 4,096 "
        "tokens (or of `context`; at most the model's own context). `{parameters: 75%}`, "
        "`{parameters: 6B}`: parameters. `{latency: 80%}`: time per token, estimated from the "
        "bytes of weights and KV cache that it reads. What a repair adds is not counted. "
        "Repeated layers are subtracted from the removed ones: `0` means the same number of "
        "layers, repeated or reordered, and `-2` means two more. Only strategies that move "
        "layers take 0 or less. `repeat` adds as many layers as a size such as `{latency: 120%}` "
        "allows.",
        min_length=1,
    )
    repairs: Names = option("Names of repairs; `none` repairs nothing.", ["none"], min_length=1)
    healings: Names = option("Names of healings; `none` trains nothing.", ["none"], min_length=1)
    tasks: Literal["all", "own"] | Names = option(
        "Benchmark tasks to measure: `all` of them, only the calibration's `own`, or a list of "
        "names.",
        "all",
        allowed="all, own, or a list of names under benchmarks.tasks",
    )
    perplexity: Literal["all"] | Names = option(
        "Perplexity texts to measure: `all` of them, or a list of names.",
        "all",
        allowed="all, or a list of names under benchmarks.perplexity",
    )
    gates: Gates = option(
        "Requirements for each variant, on tasks or texts, which are then measured too. `{task: "
        "NAME, keep: 90%}`: this share of the base model's score (for perplexity, base / "
        "variant). `{task: NAME, floor: 0.5}`: this value of the task's main metric, such as "
        "accuracy. By its 95 % interval, a variant passes, fails, or is not told apart. A "
        "variant that fails is not recommended.",
        [],
        allowed="a list of {task: NAME, keep: SHARE} and {task: NAME, floor: VALUE}",
    )

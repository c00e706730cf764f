"""Sections `sweep`, `benchmark` and `report`: how the work is cut into jobs, and what the report recommends."""

from typing import Annotated, Literal

from pydantic import Field

from lamina.config.entry import Entry, option


class Sweep(Entry):
    """How a sweep is cut into jobs and batches."""

    blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = option(
        "Jobs per sweep, of equal cost. Each job carries the whole model too, so a sweep of L layers in two jobs costs "
        "2 / (L + 1) more than in one. `auto` takes as many jobs as cost at most a tenth more (2 from 19 layers on, 5 "
        "for 80). With one GPU, 1 is cheapest; with many, write their number.",
        "auto",
        allowed="a whole number of at least 1, or auto",
    )
    tokens: Annotated[int, Field(ge=64)] | Literal["auto"] = option(
        "Tokens in one batch, over all streams of the sweep. Bounds the memory; `auto` is as many as fit into half of "
        "the free memory of the GPU, or 2 GB on a CPU.",
        16384,
        allowed="a whole number of at least 64, or auto",
    )


class Benchmark(Entry):
    """How the benchmarks are cut into jobs."""

    blocks: int = option("Jobs over which the variants of one calibration are spread, per task.", 1, ge=1)


class Report(Entry):
    """What the report looks for: the smallest model that keeps this much."""

    keep: float = option(
        "Share of the base model's number on a task that a variant must keep (for perplexity, base / variant).",
        0.95,
        gt=0,
        le=1,
    )
    counted_from: Literal["zero", "chance"] = option(
        "What that share is counted from. `zero`: value / base, as papers print it and known for every task. `chance`: "
        "(value - chance) / (base - chance), which is stricter, because guessing keeps nothing; tasks whose chance is "
        "unknown (no calibration samples them alone) then have no answer. The report says both.",
        "zero",
    )
    general_text: float | None = option(
        "Most that the perplexity of general text may be, as a multiple of the base model's; `null` allows anything.",
        None,
        ge=1,
    )

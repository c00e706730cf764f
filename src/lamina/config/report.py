"""Section `report`: what a variant must keep to be recommended at the head of the report."""

from typing import Literal

from lamina.config.entry import Entry, option


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

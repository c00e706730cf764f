"""Format numbers and removals for tables and cards; these are filters of the page's template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from lamina.models.units import describe_moves, parse_unit, removals_among
from lamina_workflow.report.figures.style import format_interval, with_minus_signs
from lamina_workflow.report.paired_tests import NOISY, ratio_interval

DASH = "–"  # stands for a missing number


def format_decimal(value: float | None, digits: int = 3) -> str:
    """A number for a table cell; a dash if there is none."""
    if value is None:
        return DASH
    return with_minus_signs(f"{value:.{digits}f}")


def format_measurement(value: float | None, stderr: float | None, digits: int = 3) -> str:
    """A measured number with its 95 % interval."""
    if value is None:
        return DASH
    return format_interval(value, stderr, digits)


def format_signed(value: float, form: str = ".2f") -> str:
    """A number in a sentence, with a true minus sign."""
    return with_minus_signs(f"{value:{form}}")


def format_percent(value: float | None, stderr: float | None) -> str:
    """A share in percent with its 95 % interval."""
    if value is None:
        return DASH
    percent_stderr = None if stderr is None else 100 * stderr
    return format_interval(100 * value, percent_stderr, 1)


def format_share(value: float | None) -> str:
    """A share in percent without an interval, for counts."""
    if value is None:
        return DASH
    return f"{100 * value:.1f}"


def format_time_ratio(ratio: float | None, stderr: float | None, repeats: int | None) -> str:
    """A ratio of times in percent with its 95 % interval, which is not symmetric."""
    if ratio is None:
        return DASH
    if stderr is None or repeats is None or repeats < 2:
        return f"{100 * ratio:.1f}"
    low, high = ratio_interval(ratio, stderr, int(repeats))
    if high > NOISY * low:
        return "too noisy"
    return f"{100 * ratio:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def format_speed_ratio(ratio: float, stderr: float | None, repeats: int | None) -> str:
    """A ratio of speeds with its 95 % interval."""
    if stderr is None or repeats is None or repeats < 2:
        return f"× {ratio:.2f}"
    low, high = ratio_interval(ratio, stderr, int(repeats))
    if high > NOISY * low:
        return "too noisy to compare"
    return f"× {ratio:.2f} [{low:.2f}, {high:.2f}]"


def format_bytes(n_bytes: float) -> str:
    """Bytes as MB or GB."""
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:,.2f} GB"
    return f"{n_bytes / 1e6:,.1f} MB"


def differs_from_one(ratio: float, stderr: float | None, repeats: int | None) -> bool:
    """Whether the 95 % interval of a ratio of times excludes 1."""
    if stderr is None or repeats is None or repeats < 2:
        return False
    low, high = ratio_interval(ratio, stderr, int(repeats))
    return not low <= 1 <= high


def describe_removal(row: Mapping[str, Any], n_layers: int) -> str:
    """The edits of a variant in words: `layers 5 and 9 of 12`, `5.mlp and 9.mlp`.

    Other edits follow it, or stand alone: `runs layers 7 to 9 twice`.

    A recipe has one plan per task and so no units of its own; for it, the number of removed units.
    """
    edits = (row["units"] or "").split()
    moves = describe_moves(edits)
    units = sorted(removals_among(edits), key=lambda unit: parse_unit(unit)[0])
    if moves:
        return f"{', '.join(units)}; {moves}" if units else moves
    if not units:
        return _describe_size(row["removed"], row["component"], n_layers)
    listed_units = units[-1]
    if len(units) > 1:
        listed_units = f"{', '.join(units[:-1])} and {listed_units}"
    if not all(unit.isdigit() for unit in units):
        return listed_units
    noun = "layer" if len(units) == 1 else "layers"
    return f"{noun} {listed_units} of {n_layers}"


def _describe_size(removed: int, component: str, n_layers: int) -> str:
    if component == "layer":
        return f"{removed} of {n_layers} layers"
    if component == "both":
        return f"sub-layers worth {removed} of {n_layers} layers"
    name = {"attention": "attention", "mlp": "MLP"}[component]
    noun = "sub-layers" if removed > 1 else "sub-layer"
    return f"{removed} {name} {noun}"


def count_text_samples(row: Mapping[str, Any]) -> str:
    """The number of general-text samples on which a variant was measured.

    The samples are documents, or blocks of windows if the documents of a text are joined.
    """
    n_blocks = int(row["text_blocks"])
    n_documents = int(row["text_samples"]) - n_blocks
    sample_counts = []
    if n_documents:
        sample_counts.append(f"{n_documents:,} documents")
    if n_blocks:
        sample_counts.append(f"{n_blocks:,} blocks of joined documents")
    return ", ".join(sample_counts)


def capitalise_first(text: str) -> str:
    """The text with a capital first letter; the other letters stay, as in names."""
    return text[:1].upper() + text[1:]


FILTERS = (
    capitalise_first,
    count_text_samples,
    describe_removal,
    differs_from_one,
    format_bytes,
    format_decimal,
    format_measurement,
    format_percent,
    format_share,
    format_time_ratio,
)


def make_environment(folder: Path) -> jinja2.Environment:
    """The environment of the templates in a folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for function in FILTERS:
        environment.filters[function.__name__] = function
    return environment

"""The interactive figures of the report: Vega-Lite over one table of variants.

The page draws each specification itself. For paper and for pages without scripts, it is also drawn
here, without a browser.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import duckdb
import vl_convert

from lamina import paths
from lamina.relevance.statistics import Z95
from lamina_workflow.report.answers import answer_question
from lamina_workflow.report.figures.style import COLOURS, format_repair

QUESTION = "which_variants_there_are"
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
    "triangle-left",
)
TEMPLATE = paths.locate("workflow/report/explorer.json")
STILL_WIDTH = 760  # pixels; on the page, a figure is as wide as its container

# SVG attributes that are left out, with their default values.
_DEFAULT_ATTRIBUTES = (
    r' (?:opacity="1"|pointer-events="none"|aria-hidden="true"|font-family="sans-serif")'
)
_COORDINATES = re.compile(r'(?<= )(?:d|x2|y2|transform)="[^"]*"')

Specification = dict[str, Any]  # of a figure, in Vega-Lite's JSON


def list_variants(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Every variant, including the base models.

    `id` is its row on the page, and `repaired_by` the name of its repair and healing.
    """
    variants = answer_question(connection, QUESTION)
    for index, variant in enumerate(variants):
        variant["id"] = f"variant-{index}"
        variant["repaired_by"] = format_repair(variant["repair"], variant["healing"])
    return variants


def list_points(variants: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points that the figures draw and the controls filter, one for each variant.

    A base model has no numbers to draw. Each number comes with the ends of its 95 % interval.
    """
    points = []
    for variant in variants:
        point = {
            "id": variant["id"],
            "model": variant["model"],
            "calibration": variant["calibration"],
            "selector": variant["selector"],
            "removed": variant["removed"],
            "repaired_by": variant["repaired_by"],
            "tasks": variant["own_tasks"],
            "n": variant["own_samples"],
            "n_texts": variant["text_samples"],
            "parameters": variant["parameters_ratio"],
        }
        if variant["selector"] != "none":
            kept = variant["own_kept"]
            text_ratio = variant["text_ratio"]
            point |= _make_interval_fields("kept", kept, variant["own_kept_stderr"], scale=100)
            point |= _make_interval_fields(
                "text", text_ratio, variant["text_ratio_stderr"], scale=1
            )
        points.append(point)
    return points


def _make_interval_fields(
    name: str, value: float | None, stderr: float | None, scale: int
) -> dict[str, float]:
    """The number and the ends of its interval, where they are known and finite."""
    if value is None:
        return {}
    interval_fields = {name: value * scale}
    if stderr is not None:
        half_width = Z95 * stderr * scale
        interval_fields[f"{name}_low"] = value * scale - half_width
        interval_fields[f"{name}_high"] = value * scale + half_width
    return {key: round(number, 5) for key, number in interval_fields.items() if isfinite(number)}


def fill_specifications(points: Sequence[dict[str, Any]], keep: float) -> dict[str, Specification]:
    """The specification of each figure that has data, by name.

    The rows are not in it: they are its data set `variants`. The file TEMPLATE holds both
    specifications, with names that begin with $ in place of the rows' selectors and repairs.

    keep: share of the base model's score, drawn as a dashed line
    """
    pruned_points = [point for point in points if "kept" in point]
    selector_names = sorted({point["selector"] for point in pruned_points}, key=_accuracy_first)
    repair_names = sorted(
        {point["repaired_by"] for point in pruned_points}, key=_simple_repairs_first
    )
    value_by_name = {
        "asked": 100 * keep,
        "colour": _encode_names("selector", selector_names, COLOURS),
        "marker": _encode_names("selector", selector_names, SHAPES),
        "shape": _encode_names("repaired_by", repair_names, SHAPES),
        "repairs": repair_names,
        "sizes": sorted({point["removed"] for point in pruned_points}),
    }
    template_text = Path(TEMPLATE).read_text(encoding="utf-8")
    for name, value in value_by_name.items():
        template_text = template_text.replace(f'"${name}"', json.dumps(value))
    template = json.loads(template_text)

    specifications = {}
    if any("text" in point for point in pruned_points):
        specifications["frontier"] = template["shared"] | template["frontier"]
    if pruned_points:
        specifications["curves"] = template["shared"] | template["curves"]
    return specifications


def _accuracy_first(selector: str) -> tuple[bool, str]:
    return selector != "accuracy", selector


def _simple_repairs_first(name: str) -> tuple[bool, bool, str]:
    is_combined = " + " in name  # a repair and a healing
    return name != "no repair", is_combined, name


def _encode_names(field: str, names: Sequence[str], marks: Sequence[str]) -> dict[str, Any]:
    """An encoding that gives each name its mark, the same in every figure."""
    marks_of_names = [marks[index % len(marks)] for index in range(len(names))]
    scale = {"domain": names, "range": marks_of_names}
    return {"field": field, "type": "nominal", "scale": scale}


def draw_still(specification: Specification, points: Sequence[dict[str, Any]], model: str) -> str:
    """The figure as SVG, for one model, without superfluous attributes and digits."""
    model_points = [point for point in points if point["model"] == model]
    filled_specification = specification | {"data": {"name": "variants", "values": model_points}}
    if specification.get("width") == "container":
        filled_specification["width"] = STILL_WIDTH
    svg_text = vl_convert.vegalite_to_svg(filled_specification)
    svg_text = re.sub(rf'\s+xmlns(:\w+)?="[^"]*"|{_DEFAULT_ATTRIBUTES}', "", svg_text)
    return _COORDINATES.sub(_keep_one_decimal, svg_text)


def _keep_one_decimal(coordinates: re.Match[str]) -> str:
    return re.sub(r"(\.\d)\d+", r"\1", coordinates[0])


@cache
def bundle_scripts() -> str:
    """The script of Vega-Lite and its renderer, which the page contains once."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", r"<\/script")

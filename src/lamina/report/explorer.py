"""The figures of the report that follow its controls, as Vega-Lite specifications over one table of variants.

The same specification is drawn here without a browser, for paper and for pages without scripts, and by the page itself.
"""

import re
from functools import cache
from math import isfinite
from typing import Any

import duckdb
import vl_convert

from lamina.relevance.statistics import Z95
from lamina.report.figures.style import COLOURS, NEUTRAL
from lamina.tables.answers import answer

QUESTION = "which_variants_there_are"
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
POINT_HINTS = {
    "calibration": "calibration",
    "selector": "selector",
    "removed": "units removed",
    "repaired_by": "repaired_by",
    "told_kept": "kept of the own task",
    "n": "n, test documents",
    "told_text": "general text, × base",
    "n_texts": "n, texts",
}
MEAN_HINTS = {
    "selector": "selector",
    "removed": "units removed",
    "repaired_by": "repaired_by",
    "told_kept": "kept, mean",
    "calibrations": "calibrations in the mean",
    "n": "n, test documents",
}


def variants(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Every variant, including the base models, with `id`, its row on the page, and `repair`, its repairs."""
    rows = answer(connection, QUESTION)
    for number, row in enumerate(rows):
        parts = [row[kind] for kind in ("repair", "healing") if row[kind] != "none"]
        row |= {"id": f"variant-{number}", "repaired_by": " + ".join(parts) or "no repair"}
    return rows


def points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pruned variants that the figures draw and the controls filter, each number with the ends of its interval."""
    drawn = []
    for row in rows:
        point = {name: row[name] for name in ("id", "model", "calibration", "selector", "removed", "repaired_by")}
        point |= {
            "tasks": row["own_tasks"],
            "n": row["own_samples"],
            "n_texts": row["text_samples"],
            "parameters": row["parameters_ratio"],
        }
        for name, column, unit in (("kept", "own_kept", 100), ("text", "text_ratio", 1)):
            if row["removed"] and row[column] is not None:
                value, stderr = row[column] * unit, row[f"{column}_stderr"]
                ends = {name: value}
                if stderr is not None:
                    reach = Z95 * stderr * unit
                    ends |= {f"{name}_low": value - reach, f"{name}_high": value + reach}
                point |= {key: round(number, 5) for key, number in ends.items() if isfinite(number)}
        drawn.append(point)
    return drawn


def specifications(drawn: list[dict[str, Any]], keep: float) -> dict[str, dict[str, Any]]:
    """Specification of each figure that has data, by name, without the rows, which are the data set `variants`."""
    pruned = [row for row in drawn if "kept" in row]
    charts = {"curves": curves(pruned, keep)} if pruned else {}
    if any("text" in row for row in pruned):
        charts = {"frontier": frontier(pruned, keep)} | charts
    return charts


def frontier(pruned: list[dict[str, Any]], keep: float) -> dict[str, Any]:
    """The figure of what a variant keeps of its task, against the perplexity of general text."""
    # Most variants stand near 0, and a few at thousands of percent.
    across: dict[str, Any] = {
        "field": "rise",
        "type": "quantitative",
        "title": "rise of the perplexity of general text (%)",
    }
    across |= {"scale": {"type": "symlog", "constant": 5, "nice": False, "padding": 10}}
    across |= {
        "axis": {
            "values": [-10, 0, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e5],
            "labelExpr": "format(datum.value, ',.0f')",
        }
    }
    up = {"field": "kept", "type": "quantitative", "title": "kept of the own task (%)"}
    coloured = {"color": colour(pruned)}
    chosen = {"test": "chosen === datum.id"}
    point = {"x": across, "y": up, "shape": shape(pruned), "tooltip": hint(POINT_HINTS)} | coloured
    return base() | {
        "width": "container",
        "height": 380,
        "params": [{"name": "chosen", "value": ""}],
        "transform": [
            {"filter": "isValid(datum.kept) && isValid(datum.text)"},
            *({"calculate": f"100 * (datum.text{end} - 1)", "as": f"rise{end}"} for end in ("", "_low", "_high")),
            tooltip("kept", ".1f", " %"),
            tooltip("text", ".3f", ""),
        ],
        "layer": [
            asked(keep),
            {"mark": {"type": "rule", "opacity": 0.45}, "encoding": interval("x", "rise") | {"y": up} | coloured},
            {"mark": {"type": "rule", "opacity": 0.45}, "encoding": interval("y", "kept") | {"x": across} | coloured},
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.9, "cursor": "pointer"},
                "encoding": point
                | {"size": {"condition": chosen | {"value": 320}, "value": 60}}
                | {"stroke": {"condition": chosen | {"value": "black"}, "value": None}},
            },
        ],
    }


def curves(pruned: list[dict[str, Any]], keep: float) -> dict[str, Any]:
    """The figure of what is kept against the number of removed units: a panel per repair, means over shown tasks."""
    across: dict[str, Any] = {"field": "removed", "type": "quantitative", "title": "units removed"}
    across |= {"axis": {"tickMinStep": 1, "format": "d"}, "scale": {"zero": False, "padding": 12}}
    up = {"field": "kept", "type": "quantitative", "title": "kept of the own tasks (%)"}
    coloured = {"color": colour(pruned)}
    return base() | {
        "transform": [
            {"filter": "isValid(datum.kept)"},
            {"calculate": "datum.kept_high - datum.kept", "as": "reach"},
            # Draws of one calibration are tested on the same documents: their errors may all go together.
            {
                "aggregate": [
                    {"op": "sum", "field": "kept", "as": "kept"},
                    {"op": "sum", "field": "reach", "as": "reach"},
                    {"op": "valid", "field": "reach", "as": "known"},
                    {"op": "max", "field": "n", "as": "n"},
                    {"op": "count", "as": "calibrations"},
                ],
                "groupby": ["model", "selector", "repaired_by", "removed", "tasks"],
            },
            {"calculate": "datum.known === datum.calibrations ? pow(datum.reach, 2) : NaN", "as": "variance"},
            {
                "aggregate": [
                    {"op": "sum", "field": "kept", "as": "kept"},
                    {"op": "sum", "field": "variance", "as": "variance"},
                    {"op": "valid", "field": "variance", "as": "known"},
                    {"op": "sum", "field": "n", "as": "n"},
                    {"op": "sum", "field": "calibrations", "as": "calibrations"},
                    {"op": "count", "as": "groups"},
                ],
                "groupby": ["model", "selector", "repaired_by", "removed"],
            },
            {"calculate": "datum.kept / datum.calibrations", "as": "kept"},
            # A mean over fewer tasks is another question, as in the view `frontier`.
            {"joinaggregate": [{"op": "max", "field": "calibrations", "as": "most"}], "groupby": ["model", "removed"]},
            {"filter": "datum.calibrations === datum.most"},
            {
                "calculate": "datum.known === datum.groups ? sqrt(datum.variance) / datum.calibrations : NaN",
                "as": "reach",
            },
            {"calculate": "datum.kept - datum.reach", "as": "kept_low"},
            {"calculate": "datum.kept + datum.reach", "as": "kept_high"},
            tooltip("kept", ".1f", " %"),
        ],
        "facet": {
            "field": "repaired_by",
            "sort": repairs(pruned),
            "title": None,
            "header": {"labelFontWeight": "bold"},
        },
        "columns": 4,
        "spec": {
            "width": 190,
            "height": 190,
            "layer": [
                asked(keep),
                {"mark": {"type": "line", "opacity": 0.8}, "encoding": {"x": across, "y": up} | coloured},
                {
                    "mark": {"type": "rule", "opacity": 0.6},
                    "encoding": interval("y", "kept") | {"x": across} | coloured,
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 45, "cursor": "pointer"},
                    "encoding": {
                        "x": across,
                        "y": up,
                        "tooltip": hint(MEAN_HINTS),
                    }
                    | coloured,
                },
            ],
        },
    }


def base() -> dict[str, Any]:
    """The common part of the figures."""
    return {
        "data": {"name": "variants"},
        "config": {
            "font": "sans-serif",
            "view": {"stroke": None},
            "axis": {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "gridColor": "#e3e3e3"},
            "legend": {"orient": "bottom", "columns": 4, "labelFontSize": 12, "titleFontSize": 12, "symbolLimit": 40},
            "header": {"labelFontSize": 13},
        },
    }


def asked(keep: float) -> dict[str, Any]:
    """The line at the share that must be kept."""
    return {
        "data": {"values": [{"asked": 100 * keep}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": NEUTRAL},
        "encoding": {"y": {"field": "asked", "type": "quantitative"}},
    }


def interval(axis: str, name: str) -> dict[str, Any]:
    """Both ends of a 95 % interval, along its axis."""
    return {axis: {"field": f"{name}_low", "type": "quantitative"}, f"{axis}2": {"field": f"{name}_high"}}


def selectors(pruned: list[dict[str, Any]]) -> list[str]:
    """The selectors, in the order that gives them their colours in every figure."""
    return sorted({row["selector"] for row in pruned}, key=lambda name: (name != "accuracy", name))


def repairs(pruned: list[dict[str, Any]]) -> list[str]:
    """The repairs, in the order of the table: no repair first."""
    return sorted({row["repaired_by"] for row in pruned}, key=lambda name: (name != "no repair", " + " in name, name))


def colour(pruned: list[dict[str, Any]]) -> dict[str, Any]:
    """The colour encoding of selectors."""
    names = selectors(pruned)
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(names))]
    return {"field": "selector", "type": "nominal", "scale": {"domain": names, "range": colours}}


def shape(pruned: list[dict[str, Any]]) -> dict[str, Any]:
    """The shape encoding of repairs."""
    names = repairs(pruned)
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(names))]
    return {"field": "repaired_by", "type": "nominal", "scale": {"domain": names, "range": shapes}}


def tooltip(name: str, form: str, unit: str) -> dict[str, Any]:
    """A number with its interval, if that is known, as the tooltip shows it."""
    number, low, high = (f"format(datum.{key}, '{form}')" for key in (name, f"{name}_low", f"{name}_high"))
    reach = f"isFinite(datum.{name}_low) ? ' [' + {low} + ', ' + {high} + ']' : ''"
    return {"calculate": f"{number} + '{unit}' + ({reach})", "as": f"told_{name}"}


def hint(fields: dict[str, str]) -> list[dict[str, str]]:
    """The lines of the tooltip of a point: fields and their titles."""
    return [{"field": field, "title": title} for field, title in fields.items()]


def still(specification: dict[str, Any], drawn: list[dict[str, Any]], model: str) -> str:
    """The figure as SVG, for one model."""
    values = [row for row in drawn if row["model"] == model]
    width = {"width": 760} if specification.get("width") == "container" else {}
    text = vl_convert.vegalite_to_svg(specification | width | {"data": {"name": "variants", "values": values}})
    usual = r' (?:opacity="1"|pointer-events="none"|aria-hidden="true"|font-family="sans-serif")'
    text = re.sub(rf'\s+xmlns(:\w+)?="[^"]*"|{usual}', "", text)
    return re.sub(r'(?<= )(?:d|x2|y2|transform)="[^"]*"', lambda places: re.sub(r"(\.\d)\d+", r"\1", places[0]), text)


@cache
def scripts() -> str:
    """The script of Vega-Lite and its renderer, which the page holds once."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", r"<\/script")

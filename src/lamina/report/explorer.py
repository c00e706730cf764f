"""The figures of the report that follow its controls, as Vega-Lite specifications over one table of variants.

The same specification is drawn here without a browser, for paper and for pages without scripts, and by the page itself.
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

from lamina.relevance.statistics import Z95
from lamina.report.answers import answer
from lamina.report.figures.style import COLOURS, format_repair
from lamina.study import paths

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
TEMPLATE = paths.own("workflow/report/explorer.json")


def variants(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Every variant, including the base models, with `id`, its row on the page, and `repair`, its repairs."""
    rows = answer(connection, QUESTION)
    for number, row in enumerate(rows):
        row |= {
            "id": f"variant-{number}",
            "repaired_by": format_repair(row["repair"], row["healing"]),
        }
    return rows


def points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pruned variants that the figures draw and the controls filter, each number with the ends of its interval."""
    drawn = []
    for row in rows:
        point = {
            name: row[name]
            for name in ("id", "model", "calibration", "selector", "removed", "repaired_by")
        }
        point |= {"tasks": row["own_tasks"], "n": row["own_samples"]}
        point |= {"n_texts": row["text_samples"], "parameters": row["parameters_ratio"]}
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
    """Specification of each figure that has data, by name, without the rows, which are the data set `variants`.

    The file TEMPLATE has both, with names that begin with $ where the selectors and repairs of the rows belong.
    """
    pruned = [row for row in drawn if "kept" in row]
    selectors = sorted(
        {row["selector"] for row in pruned}, key=lambda name: (name != "accuracy", name)
    )
    repairs = sorted(
        {row["repaired_by"] for row in pruned},
        key=lambda name: (name != "no repair", " + " in name, name),
    )
    filled = {
        "asked": 100 * keep,
        "colour": _nominal("selector", selectors, COLOURS),
        "marker": _nominal("selector", selectors, SHAPES),
        "shape": _nominal("repaired_by", repairs, SHAPES),
        "repairs": repairs,
        "sizes": sorted({row["removed"] for row in pruned}),
    }
    text = Path(TEMPLATE).read_text(encoding="utf-8")
    for name, value in filled.items():
        text = text.replace(f'"${name}"', json.dumps(value))
    template = json.loads(text)
    shown = ["frontier"] if any("text" in row for row in pruned) else []
    return {
        name: template["shared"] | template[name]
        for name in [*shown, *(["curves"] if pruned else [])]
    }


def _nominal(field: str, names: list[str], marks: Sequence[str]) -> dict[str, Any]:
    """An encoding that gives each name its mark, the same in every figure."""
    scale = {"domain": names, "range": [marks[place % len(marks)] for place in range(len(names))]}
    return {"field": field, "type": "nominal", "scale": scale}


def still(specification: dict[str, Any], drawn: list[dict[str, Any]], model: str) -> str:
    """The figure as SVG, for one model."""
    values = [row for row in drawn if row["model"] == model]
    width = {"width": 760} if specification.get("width") == "container" else {}
    text = vl_convert.vegalite_to_svg(
        specification | width | {"data": {"name": "variants", "values": values}}
    )
    usual = r' (?:opacity="1"|pointer-events="none"|aria-hidden="true"|font-family="sans-serif")'
    text = re.sub(rf'\s+xmlns(:\w+)?="[^"]*"|{usual}', "", text)
    return re.sub(
        r'(?<= )(?:d|x2|y2|transform)="[^"]*"',
        lambda places: re.sub(r"(\.\d)\d+", r"\1", places[0]),
        text,
    )


@cache
def scripts() -> str:
    """The script of Vega-Lite and its renderer, which the page holds once."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
        "</script", r"<\/script"
    )

"""The report of a run: one HTML file that needs nothing else, every sentence in it computed from the tables.

Intervals are 95 % throughout, as in the figures: 1.96 standard errors on either side.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import jinja2
from markupsafe import Markup

from lamina import explorer
from lamina import figures as figure_modules
from lamina.config.metrics import METRICS
from lamina.database import rows
from lamina.figures.style import Z95
from lamina.recommendation import recommendations
from lamina.summary import summary

DISAGREEMENTS_SHOWN = 15
NO_NAMES: Mapping[str, Mapping[str, str]] = {}
CHOICES = ("model", "calibration", "selector", "removed", "repair")  # what the controls of the page choose by

# Letters as matplotlib draws them, by font and code point: a shape, and the places where it stands.
GLYPH_ID = r"[A-Z]\w+(?:-[A-Z]\w+)*-[0-9a-f]+"
GLYPH = re.compile(rf'<path id="({GLYPH_ID})"(?: d="[^"]*")? transform="scale\([\d.]+\)"/>\s*')
SET = re.compile(rf'<use xlink:href="#({GLYPH_ID})"(?: transform="translate\(([\d.]+) 0\)")?/>')

DIAGNOSES = """
FROM diagnoses WHERE layer IS NULL AND point IS NULL AND value IS NOT NULL
ORDER BY model, calibration, diagnosis, measure
"""


def render(
    connection: duckdb.DuckDBPyConnection,
    queries: Path,
    figures: Path,
    template: Path,
    facts: Mapping[str, Any],
    keep: float = 0.95,
    general_text: float | None = None,
    names: Mapping[str, Mapping[str, str]] = NO_NAMES,
) -> str:
    """The report as HTML.

    Parameters
    ----------
    connection: views of the run's tables (`lamina.database.connect`)
    queries: folder of `sql/queries`; the tables of the report are their answers
    figures: folder of the figures as `{name}.svg`
    facts: run facts, shown as they are: versions, seed, commit, wall time, machine; may be nested
    keep, general_text: what a model must keep to be recommended (`lamina.recommendation`)
    names: what names of the configuration mean, by section (`lamina.config.glossary`)
    """

    def answer(query: str) -> list[dict[str, Any]]:
        return rows(connection, (queries / f"{query}.sql").read_text(encoding="utf-8"))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(share=share, measured=measured, percent=percent, decimal=decimal)
    page = environment.get_template(template.name)
    refused = rows(
        connection,
        """SELECT refused AS reason,
            string_agg(DISTINCT model || ' / ' || calibration || ' / ' || selector, ', ') AS plans
        FROM plans WHERE refused IS NOT NULL GROUP BY ALL ORDER BY plans""",
    )
    found = explorer.variants(connection)
    drawn = explorer.points(found)
    specifications = explorer.specifications(drawn, keep)
    take = recommendations(connection, keep, general_text)
    drawn_figures, glyphs = drawings(figures)
    return page.render(
        models=rows(connection, "SELECT * FROM models ORDER BY model"),
        calibrations=rows(connection, "SELECT * FROM calibrations ORDER BY model, calibration"),
        summary=summary(connection, take),
        keep=keep,
        general_text=general_text,
        take=take,
        names={**names, "metrics": metrics(connection)},
        refused=refused,
        glance=glance(answer("which_layers_matter")),
        written=answer("what_is_written"),
        drafts=answer("which_draft_pays"),
        repairs=answer("which_repair_when"),
        figures=drawn_figures,
        glyphs=glyphs,
        disagreements=answer("where_metrics_disagree")[:DISAGREEMENTS_SHOWN],
        variants=found,
        choices={key: list(dict.fromkeys(row[key] for row in drawn if row["removed"])) for key in CHOICES},
        stills={
            name: [Markup(explorer.still(each, drawn, model)) for model in dict.fromkeys(row["model"] for row in drawn)]
            for name, each in specifications.items()
        },
        explorer=Markup(as_json({"variants": drawn, "figures": specifications})),
        scripts=Markup(explorer.scripts()) if specifications else "",
        diagnoses=rows(connection, DIAGNOSES),
        times=answer("where_the_time_went"),
        facts=flatten(facts),
    )


def modules() -> dict[str, ModuleType]:
    """The modules of `lamina.figures` that draw, by name, in the order of the page."""
    names = [name for _, name, _ in pkgutil.iter_modules(figure_modules.__path__) if name != "style"]
    found = {name: importlib.import_module(f"lamina.figures.{name}") for name in names}
    return dict(sorted(found.items(), key=lambda entry: entry[1].PLACE))


def figure(name: str, module: ModuleType, folder: Path) -> dict[str, Any] | None:
    """One figure ready for the page: its SVG inline, and its caption; None where it has none and so no data."""
    path = folder / f"{name}.svg"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    caption = re.search(r"<desc>(.*?)</desc>\s*", text, re.DOTALL)
    if caption is None:
        return None
    drawing = inline(text.replace(caption[0], ""), name, module.TITLE)
    return {"name": name, "title": module.TITLE, "svg": drawing, "caption": Markup(caption[1])}


def drawings(folder: Path) -> tuple[list[dict[str, Any]], Markup]:
    """The figures that have data, and the shapes of their letters, which they share: the page has each once."""
    found = [each for name, module in modules().items() if (each := figure(name, module, folder))]
    glyphs: dict[str, str] = {}
    for each in found:
        glyphs |= {shape[1]: shape[0] for shape in GLYPH.finditer(each["svg"])}
        text = re.sub(r"<defs>\s*</defs>\s*", "", GLYPH.sub("", each["svg"]))
        each["svg"] = Markup(SET.sub(lambda letter: f'<use href="#{letter[1]}" x="{letter[2] or 0}"/>', text))
    return found, Markup("".join(glyphs.values()))


def as_json(value: Any) -> str:
    """JSON that no name in it can end the script element of."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def inline(svg: str, name: str, title: str) -> Markup:
    """An SVG file as an element of the page: no prologue, no addresses, only ids in use, which are this figure's own
    but for letters."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", body)
    pointed_at = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))

    def own(identity: str) -> str:
        return identity if re.fullmatch(GLYPH_ID, identity) else f"{name}-{identity}"

    body = re.sub(r'\s+id="([^"]*)"', lambda m: f' id="{own(m[1])}"' if m[1] in pointed_at else "", body)
    body = re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + own(m[2]), body)
    head, rest = body.split(">", 1)
    width = re.search(r'width="([\d.]+)pt"', head)
    pixels = round(float(width.group(1)) * 4 / 3) if width else 900
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    style = f'style="--width:{pixels}px"'
    return Markup(f'{head} role="img" aria-label="{title}" {style}>{rest}')


def metrics(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """What the relevance metrics of the run measure."""
    measured = {row["metric"] for row in rows(connection, "SELECT DISTINCT metric FROM relevance")}
    return {name: f"Of a unit: {metric.help}." for name, metric in METRICS.items() if name in measured}


def glance(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per calibration: layers that can go one at a time, least relevant first, and the three that matter most."""
    table = []
    for model, calibration in dict.fromkeys((row["model"], row["calibration"]) for row in layers):
        mine = [row for row in layers if (row["model"], row["calibration"]) == (model, calibration)]
        known = [row for row in mine if row["relevance"] is not None]
        table.append(
            {
                "model": model,
                "calibration": calibration,
                "free": [row["layer"] for row in reversed(known) if row["verdict"] != "matters"],
                "better_without": [row["layer"] for row in known if row["verdict"] == "better without"],
                "top": [row for row in known if row["verdict"] == "matters"][:3],
                "n_samples": max((row["n_samples"] or 0 for row in mine), default=0),
                "reason": next((row["reason"] for row in mine if row["relevance"] is None), None),
            }
        )
    return table


def flatten(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as (name, value) rows; names of inner facts carry the outer name."""
    flat: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            flat += flatten(value, f"{label} · ")
        else:
            flat.append((label, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return flat


def decimal(value: float | None, digits: int = 3) -> str:
    """A number for a table cell; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def measured(value: float | None, stderr: float | None, digits: int = 3) -> str:
    """A measured number with its 95 % interval."""
    if value is None or stderr is None:
        return decimal(value, digits)
    return f"{decimal(value, digits)} ± {Z95 * stderr:.{digits}f}"


def percent(value: float | None, stderr: float | None) -> str:
    """A share in percent with its 95 % interval."""
    return "–" if value is None else measured(100 * value, None if stderr is None else 100 * stderr, 1)


def share(value: float | None) -> str:
    """A share in percent without an interval: a count, not a measurement."""
    return "–" if value is None else f"{100 * value:.1f}"

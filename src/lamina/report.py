"""The report of a run: one HTML file that needs nothing else, every sentence in it computed from the tables.

Intervals are 95 % throughout, as in the figures: 1.96 standard errors on either side.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping, Sequence
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
    style = f'style="width:{pixels}px;min-width:{round(0.62 * pixels)}px"'
    return Markup(f'{head} role="img" aria-label="{title}" {style}>{rest}')


def metrics(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """What the relevance metrics of the run measure."""
    measured = {row["metric"] for row in rows(connection, "SELECT DISTINCT metric FROM relevance")}
    return {name: f"Of a unit: {metric.help}." for name, metric in METRICS.items() if name in measured}


def summary(connection: duckdb.DuckDBPyConnection, take: Sequence[Mapping[str, Any]]) -> list[str]:
    """What came out, in a few plain sentences; poor numbers are told like good ones."""
    return [
        sentence
        for sentence in (
            *free_layers(connection),
            *agreement(connection),
            *contests(connection, take),
            *repairs(connection),
            *text_repairs(connection),
            *written(connection),
            *replicates(connection),
            not_finite(connection),
        )
        if sentence
    ]


def free_layers(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many layers each model can lose one at a time without a measurable cost, and where that differs."""
    found = rows(
        connection,
        """SELECT model, calibration, count(*) AS n_layers, count(*) FILTER (accuracy_low <= 0) AS free,
            max(accuracy_samples) AS n_samples
        FROM relevance_wide WHERE component = 'layer' AND accuracy IS NOT NULL
        GROUP BY ALL ORDER BY model, calibration""",
    )
    sentences = []
    for model in dict.fromkeys(row["model"] for row in found):
        mine = [row for row in found if row["model"] == model]
        least, most = min(mine, key=lambda row: row["free"]), max(mine, key=lambda row: row["free"])
        spread = (
            f"{most['free']} of {most['n_layers']} layers on {most['calibration']}"
            if len(mine) == 1
            else f"from {least['free']} of {least['n_layers']} layers on {least['calibration']} "
            f"to {most['free']} on {most['calibration']}"
        )
        sentences.append(
            f"{model}: taken out one at a time, {spread} cost no accuracy that {most['n_samples']} samples can show."
        )
    return sentences


def agreement(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How each metric orders the layers of each model, compared with accuracy."""
    found = rows(
        connection,
        """SELECT model, max(n_calibrations) AS tasks,
            string_agg(format('{} {:.2f} [{:.2f}, {:.2f}]', metric, value, ci_low, ci_high), '; '
                ORDER BY value DESC) AS told
        FROM agreements WHERE statistic = 'spearman' AND component = 'layer' AND isfinite(value)
        GROUP BY model ORDER BY model""",
    )
    return [
        f"{row['model']}: rank correlation with what single removals cost in accuracy, over the layers and at most "
        f"{row['tasks']} calibrations: {row['told']}.".replace("-", "−")
        for row in found
    ]


def contests(connection: duckdb.DuckDBPyConnection, take: Sequence[Mapping[str, Any]]) -> list[str]:
    """The selector of each recommended recipe against the others with the same repair, and accuracy's (or the first)
    against the others without one; over own tasks and sizes."""
    recipes = [row for row in take if row["question"] == "recipe"] or [row for row in take if row["kept_enough"]][:1]
    asked = dict.fromkeys((row["selector"], row["recovery"], row["healing"]) for row in recipes)
    first = rows(connection, "SELECT selector FROM comparisons ORDER BY selector <> 'accuracy', selector LIMIT 1")
    asked |= dict.fromkeys((row["selector"], "none", "none") for row in first)
    return [sentence for champion in asked for sentence in contest(connection, *champion)]


def contest(connection: duckdb.DuckDBPyConnection, champion: str, recovery: str, healing: str) -> list[str]:
    """A selector against every other one at equal repair; empty where it was not compared."""
    found = rows(
        connection,
        """WITH met AS (
            SELECT * REPLACE (if(selector = $champion, difference, -difference) AS difference),
                if(selector = $champion, rival, selector) AS other
            FROM comparisons WHERE $champion IN (selector, rival)
                AND recovery = $recovery AND healing = $healing AND task <> 'all'
        )
        SELECT other, count(*) AS n, count(*) FILTER (p_holm < 0.05 AND difference > 0) AS won,
            count(*) FILTER (p_holm < 0.05 AND difference < 0) AS lost,
            100 * avg(difference) FILTER (metric <> 'nll') AS points
        FROM met GROUP BY ALL ORDER BY other""",
        {"champion": champion, "recovery": recovery, "healing": healing},
    )
    told = [
        f"{row['other']} {row['won']} / {row['lost']} / {row['n'] - row['won'] - row['lost']}"
        + ("" if row["points"] is None else f" (on average {row['points']:+.1f} points of accuracy)")
        for row in found
    ]
    if not told:
        return []
    repair = " then ".join(part for part in (recovery, healing) if part != "none")
    how = f"With repair {repair}" if repair else "Without repair"
    return [
        f"{how}, selector {champion} against the others on the same task and size, counted as better / worse / "
        "undecided at 5 %, by paired tests corrected for their number: "
        f"{'; '.join(told)}.".replace("-", "−")
    ]


def repairs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How often each kind of repair helped and hurt on the calibrations' own tasks."""
    found = rows(
        connection,
        """SELECT recovery, healing, count(*) AS n, count(*) FILTER (gain > $z * gain_stderr) AS better,
            count(*) FILTER (gain < -$z * gain_stderr) AS worse,
            100 * avg(gain) FILTER (metric <> 'perplexity') AS gain,
            100 * avg(loss) FILTER (metric <> 'perplexity') AS loss
        FROM repairs WHERE own
        GROUP BY recovery, healing ORDER BY healing <> 'none', recovery <> 'none', recovery, healing""",
        {"z": Z95},
    )
    sentences = []
    for row in found:
        parts = [row[kind] for kind in ("recovery", "healing") if row[kind] != "none"]
        mean = ""
        if row["gain"] is not None:
            mean = f" Mean change {row['gain']:+.1f} points of accuracy, where pruning had cost {row['loss']:.1f}."
        sentences.append(
            f"Repair by {' then '.join(parts)} helped in {row['better']} of {row['n']} variants, hurt in "
            f"{row['worse']}; the rest is undecided at 95 %.{mean}".replace("-", "−")
        )
    return sentences


def text_repairs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What a repair fitted on one task does to texts that are not the calibration's own."""
    found = rows(
        connection,
        """SELECT task, recovery, healing, count(*) AS n, count(*) FILTER (gain > $z * gain_stderr) AS better,
            count(*) FILTER (gain < -$z * gain_stderr) AS worse, any_value(base_value) AS base,
            median(pruned_value) AS pruned, median(value) AS repaired, max(value) AS highest
        FROM repairs WHERE NOT own AND metric = 'perplexity'
        GROUP BY task, recovery, healing
        ORDER BY task, healing <> 'none', recovery <> 'none', recovery, healing""",
        {"z": Z95},
    )
    return [
        f"On {row['task']}, documents that no repair was fitted on, "
        f"{' then '.join(row[kind] for kind in ('recovery', 'healing') if row[kind] != 'none')} helped in "
        f"{row['better']} of {row['n']} variants and hurt in {row['worse']}: median perplexity {row['pruned']:.1f} "
        f"after pruning, {row['repaired']:.1f} repaired, {row['highest']:.0f} at worst (base {row['base']:.2f})."
        for row in found
    ]


def written(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What is left of right choices, and of right answers to the same questions where the model writes them."""
    found = rows(
        connection,
        """SELECT recovery, healing, count(*) AS n, 100 * avg(choice_kept) AS chosen, 100 * avg(written_kept) AS written
        FROM choices_and_generation WHERE own AND removed > 0
        GROUP BY recovery, healing ORDER BY healing <> 'none', recovery <> 'none', recovery, healing""",
    )
    told = [
        f"{' then '.join(row[kind] for kind in ('recovery', 'healing') if row[kind] != 'none') or 'without repair'} "
        f"{row['chosen']:.0f} % and {row['written']:.0f} % (n = {row['n']} variants)"
        for row in found
        if row["written"] is not None
    ]
    if not told:
        return []
    return [
        "Left on average of the base model's right choices, and of its right answers to the same questions where it "
        f"writes them itself: {'; '.join(told)}."
    ]


def replicates(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How much layers' relevance and what variants keep hang on which samples, or which seed, was drawn."""
    layers = rows(
        connection,
        """SELECT model, calibration, max(n_draws) AS n_draws, median(spread) AS spread, max(spread) AS most,
            arg_max(unit, spread) AS unit, count(*) AS n
        FROM relevance_means WHERE metric = 'accuracy' AND component = 'layer' AND spread IS NOT NULL
        GROUP BY ALL ORDER BY model, calibration""",
    )
    kept = rows(
        connection,
        """SELECT model, calibration, selector, max(n_draws) AS n_draws, 100 * median(kept_spread) AS spread,
            100 * max(kept_spread) AS most, count(*) AS n
        FROM score_means WHERE own AND kept_spread IS NOT NULL GROUP BY ALL ORDER BY model, calibration, selector""",
    )
    return [
        f"{row['calibration']}, drawn {row['n_draws']} times: the accuracy relevance of a layer of {row['model']} has "
        f"a standard deviation of {row['spread']:.3f} from draw to draw in the median of {row['n']} layers, and of "
        f"{row['most']:.3f} at most (layer {row['unit']})."
        for row in layers
    ] + [
        f"{row['selector']} on {row['calibration']}, drawn {row['n_draws']} times: what variants of {row['model']} "
        f"keep of their own task differs from draw to draw by a standard deviation of {row['spread']:.1f} points in "
        f"the median of {row['n']} variants, and of {row['most']:.1f} at most."
        for row in kept
    ]


def not_finite(connection: duckdb.DuckDBPyConnection) -> str:
    """Where a removal gave numbers that are not finite: they count as wrong, and the reader must know."""
    found = rows(
        connection,
        """SELECT model, calibration, unit, max(n_not_finite) AS most FROM relevance
        WHERE n_not_finite > 0 GROUP BY ALL ORDER BY model, calibration, most DESC, unit""",
    )
    if not found:
        return ""
    told = ", ".join(f"{row['unit']} on {row['calibration']} ({row['most']} samples)" for row in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"Without these units the outputs were not finite on some samples, which count as wrong: {told}{more}."


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

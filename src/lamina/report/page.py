"""The report of a run: one HTML file that needs no other file. Every sentence in it is computed from the tables.

All intervals are 95 % intervals, as in the figures: 1.96 standard errors on either side.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import jinja2
from markupsafe import Markup

from lamina.config.metrics import METRICS
from lamina.registry import declared
from lamina.report import answers, explorer, summary
from lamina.report.answers import answer, grouped, rows
from lamina.report.figures.style import format_interval
from lamina.report.paired_tests import NOISY, ratio_interval

DISAGREEMENTS_SHOWN = 15
DEFAULT = "config/config.yaml"  # what `make` takes where no other configuration is named
NUMBERS = (
    300_000  # characters of a figure's CSV that the page holds; a longer one is a file beside it
)
NO_NAMES: Mapping[str, Mapping[str, str]] = {}
CHOICES = (
    "model",
    "calibration",
    "selector",
    "removed",
    "repaired_by",
)  # what the controls of the page choose by

# The question of `sql/queries` that each section answers: figures name their own.
ASKED = {
    "refused": "which_plans_were_refused",
    "glance": "which_layers_matter",
    "repairs": "which_repair_when",
    "disagreements": "where_metrics_disagree",
    "written": "what_is_written",
    "times": "where_the_time_went",
    "diagnoses": "what_diagnoses_found",
}
QUESTIONS = {
    **{section: (question,) for section, question in ASKED.items()},
    "take": (answers.RECOMMENDED,),
    "explore": (explorer.QUESTION,),
    "summary": summary.QUESTIONS,
}


def render(
    connection: duckdb.DuckDBPyConnection,
    figures: Iterable[Path],
    template: Path,
    facts: Mapping[str, Any],
    keep: float = 0.95,
    general_text: float | None = None,
    names: Mapping[str, Mapping[str, str]] = NO_NAMES,
    counted_from: str = "zero",
    sizes: Sequence[str] = (),
) -> str:
    """The report as HTML.

    connection: views of the run's tables (`lamina.report.database.connect`)
    figures: the figures as `{name}.svg`, each with `{name}.csv` beside it
    facts: run facts, shown unchanged: versions, seed, commit, wall time, machine; may be nested
    keep, general_text: what a model must keep to be recommended (`lamina.report.answers.recommendations`)
    names: the meanings of names of the configuration, by section (`lamina.report.glossary`)
    counted_from: where the share `keep` starts, at zero or at chance
    sizes: the sizes that were asked for, and what they came to
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for function in (share, measured, percent, timed, apart, decimal, removal, text_counts):
        environment.filters[function.__name__] = function
    environment.filters["capitalised"] = lambda text: text[:1].upper() + text[1:]
    page = environment.get_template(template.name)
    configuration = str(facts.get("configuration", "")).removeprefix(f"{Path.cwd()}/")
    found = {section: answer(connection, question) for section, question in ASKED.items()}
    variants = explorer.variants(connection)
    drawn = explorer.points(variants)
    specifications = explorer.specifications(drawn, keep)
    take = answers.recommendations(connection, keep, general_text, counted_from)
    stock = ["none", *names.get("stock", ())]
    loadable = {
        (row["model"], row["question"], row["name"]): row
        for row in answers.recommendations(connection, keep, general_text, counted_from, stock)
    }
    scored = {row["metric"] for row in rows(connection, "SELECT DISTINCT metric FROM relevance")}
    return page.render(
        found,
        models=rows(connection, "FROM models ORDER BY model"),
        calibrations=rows(connection, "FROM calibrations ORDER BY model, calibration"),
        questions=QUESTIONS,
        summary=({"Sizes": sizes} if sizes else {}) | summary.summary(connection, take),
        keep=keep,
        general_text=general_text,
        counted_from=counted_from,
        take=take,
        loadable=loadable,
        stock=stock if names.get("repairs") else None,
        chosen=names.get("chosen", {}),
        option="" if configuration in ("", DEFAULT) else f"CONFIG={configuration} ",
        names={
            **{
                section: names[section]
                for section in ("selectors", "repairs", "healings")
                if names.get(section)
            },
            "metrics": {
                name: f"Of a unit: {metric.help}."
                for name, metric in METRICS.items()
                if name in scored
            },
        },
        glance=glance(found["glance"]),
        figures=drawings(figures),
        disagreements=found["disagreements"][:DISAGREEMENTS_SHOWN],
        variants=variants,
        choices={
            key: list(dict.fromkeys(row[key] for row in drawn if row["removed"])) for key in CHOICES
        },
        stills={
            name: [
                Markup(explorer.still(each, drawn, model))
                for model in dict.fromkeys(row["model"] for row in drawn)
            ]
            for name, each in specifications.items()
        },
        explorer=Markup(as_json({"variants": drawn, "figures": specifications})),
        scripts=Markup(explorer.scripts()) if specifications else "",
        diagnoses=[row for row in found["diagnoses"] if row["layer"] is None],
        facts=flatten(facts),
    )


def drawings(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Those of the figures that have data, in the order of the page, as SVG and caption."""
    titles, positions, questions, leads = (
        declared("lamina.report.figures", name) for name in ("TITLE", "POSITION", "QUERIES", "LEAD")
    )
    shown: list[dict[str, Any]] = []
    for number, path in enumerate(sorted(files, key=lambda file: positions[file.stem])):
        name, text = path.stem, path.read_text(encoding="utf-8")
        if caption := re.search(r"<desc>(.*?)</desc>\s*", text, re.DOTALL):
            drawing = inline(text.replace(caption[0], ""), f"f{number}", titles[name])
            numbers = path.with_suffix(".csv")
            csv = numbers.read_text(encoding="utf-8") if numbers.exists() else ""
            figure = {
                "name": name,
                "title": titles[name],
                "questions": questions[name],
                "lead": leads.get(name, 0),
            }
            held = Markup(csv.replace("<", "")) if len(csv) < NUMBERS else ""
            shown.append(figure | {"svg": drawing, "caption": Markup(caption[1]), "csv": held})
    return shown


def as_json(value: Any) -> str:
    """JSON in which no text can end the script element around it."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def inline(svg: str, prefix: str, title: str) -> Markup:
    """An SVG file as an element of the page, without prologue and addresses. Only ids in use stay; they begin with the
    prefix.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", body).replace("xlink:href", "href")
    pointed_at = list(dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', body)))
    own = {identity: f"{prefix}-{number}" for number, identity in enumerate(pointed_at)}
    body = re.sub(r'\s+id="([^"]*)"', lambda m: f' id="{own[m[1]]}"' if m[1] in own else "", body)
    body = re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + own[m[2]], body)
    head, rest = body.split(">", 1)
    width = re.search(r'width="([\d.]+)pt"', head)
    pixels = round(float(width.group(1)) * 4 / 3) if width else 900
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    style = f'style="--width:{pixels}px"'
    return Markup(f'{head} role="img" aria-label="{title}" {style}>{rest}')


def removal(row: Mapping[str, Any], depth: int) -> str:
    """What a variant removes, in words: layers by their numbers; of a recipe, with a plan for each task, how many."""
    units = sorted((row["units"] or "").split(), key=lambda unit: int(unit.split(".")[0]))
    if not units:
        removed, component = row["removed"], row["component"]
        if component == "layer":
            return f"{removed} of {depth} layers"
        if component == "both":
            return f"sub-layers worth {removed} of {depth} layers"
        name = {"attention": "attention", "mlp": "MLP"}[component]
        return f"{removed} {name} sub-layer{'s' * (removed > 1)}"
    kind = (
        ("layer " if len(units) == 1 else "layers ")
        if all(unit.isdigit() for unit in units)
        else ""
    )
    return f"{kind}{' and '.join(filter(None, [', '.join(units[:-1]), units[-1]]))}" + (
        f" of {depth}" if kind else ""
    )


def text_counts(row: Mapping[str, Any]) -> str:
    """How many samples of general text a variant was measured on: documents, and blocks of joined ones."""
    blocks = int(row["text_blocks"])
    documents = int(row["text_samples"]) - blocks
    counts = []
    if documents:
        counts.append(f"{documents:,} documents")
    if blocks:
        counts.append(f"{blocks:,} blocks of joined documents")
    return ", ".join(counts)


def glance(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each calibration: layers that can go one at a time, least relevant first, and the three that matter most."""
    layers = [row for row in layers if row["component"] == "layer" and row["n_draws"] is None]
    layers = [row for row in layers if row["accuracy"] is not None or row["accuracy_reason"]]
    table = []
    for (model, calibration), mine in grouped(layers, "model", "calibration").items():
        known = [row for row in mine if row["accuracy"] is not None]
        table.append(
            {
                "model": model,
                "calibration": calibration,
                "free": [row["layer"] for row in reversed(known) if row["verdict"] != "matters"],
                "better_without": [
                    row["layer"] for row in known if row["verdict"] == "better without"
                ],
                "top": [row for row in known if row["verdict"] == "matters"][:3],
                "n_layers": len(mine),
                "n_samples": max((row["accuracy_samples"] or 0 for row in mine), default=0),
                "reason": next(
                    (row["accuracy_reason"] for row in mine if row["accuracy"] is None), None
                ),
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
            flat.append(
                (label, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            )
    return flat


def decimal(value: float | None, digits: int = 3) -> str:
    """A number for a table cell; a dash if there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def measured(value: float | None, stderr: float | None, digits: int = 3) -> str:
    """A measured number with its 95 % interval."""
    return decimal(value) if value is None else format_interval(value, stderr, digits)


def percent(value: float | None, stderr: float | None) -> str:
    """A share in percent with its 95 % interval."""
    return (
        "–" if value is None else measured(100 * value, None if stderr is None else 100 * stderr, 1)
    )


def timed(ratio: float | None, stderr: float | None, repeats: int | None) -> str:
    """A ratio of times in percent with its 95 % interval, which is not symmetric."""
    if ratio is None or stderr is None or repeats is None or repeats < 2:
        return "–" if ratio is None else f"{100 * ratio:.1f}"
    low, high = ratio_interval(ratio, stderr, int(repeats))
    if high > NOISY * low:
        return "too noisy"
    return f"{100 * ratio:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def apart(ratio: float, stderr: float | None, repeats: int | None) -> bool:
    """Whether the 95 % interval of a ratio of times leaves out 1."""
    if stderr is None or repeats is None or repeats < 2:
        return False
    low, high = ratio_interval(ratio, stderr, int(repeats))
    return not low <= 1 <= high


def share(value: float | None) -> str:
    """A share in percent without an interval: a count, not a measurement."""
    return "–" if value is None else f"{100 * value:.1f}"

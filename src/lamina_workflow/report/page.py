"""The report of a run: one HTML file that needs no other file.

Every sentence in it is computed from the tables. All intervals are 95 % intervals, as in the
figures: 1.96 standard errors on either side.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import duckdb
from markupsafe import Markup

from lamina.models.export.runtimes import RUNTIMES
from lamina.options.metrics import METRICS
from lamina_workflow.report import answers, explorer, summary
from lamina_workflow.report.answers import answer_question, group_rows, query_rows
from lamina_workflow.report.formatting import make_environment
from lamina_workflow.report.inline_svg import read_figures
from lamina_workflow.report.judgements import Judgement, compare_scores
from lamina_workflow.report.recommendation import RUNTIME_NAMES, Recommender

MAX_DISAGREEMENTS = 15  # rows of their table
N_TOP_LAYERS = 3  # layers of a calibration that "At a glance" calls the most relevant
DEFAULT_CONFIGURATION = "config/config.yaml"  # which commands use by default
NO_NAMES: Mapping[str, Mapping[str, str]] = {}

# Columns by which the page's controls filter variants.
CONTROLS = ("model", "calibration", "selector", "removed", "repaired_by")

# The question of `sql/queries` that each section of the page answers; figures name their own.
SECTION_QUESTIONS = {
    "refused": "which_plans_were_refused",
    "gates": "which_gates_are_passed",
    "glance": "which_layers_matter",
    "repairs": "which_repair_when",
    "disagreements": "where_metrics_disagree",
    "written": "what_is_written",
    "times": "where_the_time_went",
    "diagnoses": "what_diagnoses_found",
}
QUESTIONS = {
    **{section: (question,) for section, question in SECTION_QUESTIONS.items()},
    "take": (answers.RECOMMENDED,),
    "explore": (explorer.QUESTION,),
    "summary": summary.QUESTIONS,
}


class CalibrationGlance(TypedDict):
    """The effect of removing single layers on one calibration: a row of "At a glance"."""

    model: str
    calibration: str
    free: list[int]  # layers that can be removed one at a time, least relevant first
    better_without: list[int]  # those of them whose removal raises accuracy significantly
    top: list[dict[str, Any]]  # rows of the most relevant layers
    n_layers: int
    n_samples: int
    reason: str | None  # why a layer has no accuracy relevance


def render_report(
    connection: duckdb.DuckDBPyConnection,
    figures: Iterable[Path],
    template: Path,
    facts: Mapping[str, Any],
    keep: float = 0.95,
    general_text: float | None = None,
    names: Mapping[str, Mapping[str, str]] = NO_NAMES,
    counted_from: str = "zero",
    sizes: Sequence[str] = (),
    must_load: str | None = None,
    judgements: Sequence[Judgement] = (),
) -> str:
    """The report as HTML.

    connection: views of the run's tables (`lamina_workflow.report.database.connect_views`)
    figures: the figures as `{name}.svg`, each with `{name}.csv` next to it
    facts: facts about the run, shown unchanged: versions, seed, commit, wall time, machine; may be
        nested
    keep, general_text, counted_from: what a model must keep to be recommended
        (`lamina_workflow.report.answers.recommendations`)
    names: the meanings of names in the configuration, by section
        (`lamina_workflow.report.glossary`)
    sizes: the requested sizes, and how many layers each is
    must_load: the program that must be able to load a recommended model; None allows any
    judgements: the measurements of `lamina judge`
    """
    variants = explorer.list_variants(connection)
    stock_repairs = ["none", *names.get("stock", ())]
    recommender = Recommender(connection, stock_repairs, keep, general_text, counted_from)
    recommended = recommender.recommend([must_load] if must_load else [])
    contents = {
        **_answer_sections(connection),
        "recommended_everywhere": {
            (row["model"], row["question"], row["name"]): row
            for row in recommender.recommend(RUNTIMES)
        },
        "stock_repairs": stock_repairs,
        "must_load": RUNTIME_NAMES[must_load] if must_load else None,
        **_fill_explorer(variants, keep),
        "models": query_rows(connection, "FROM models ORDER BY model"),
        "calibrations": query_rows(connection, "FROM calibrations ORDER BY model, calibration"),
        "questions": QUESTIONS,
        "summary": _summarise_with_sizes(connection, recommended, sizes),
        "keep": keep,
        "general_text": general_text,
        "counted_from": counted_from,
        "recommended": recommended,
        "judgements": [(judgement, compare_scores(judgement, keep)) for judgement in judgements],
        "how_chosen": names.get("chosen", {}),
        "export_option": _format_export_option(facts),
        "names": _explain_names(connection, names),
        "figures": read_figures(figures),
        "variants": variants,
        "facts": flatten_facts(facts),
    }
    return make_environment(template.parent).get_template(template.name).render(contents)


def _answer_sections(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """The answers to SECTION_QUESTIONS, in the form that the sections show."""
    contents: dict[str, Any] = {}
    for section, question in SECTION_QUESTIONS.items():
        contents[section] = answer_question(connection, question)
    contents["glance"] = glance_at_calibrations(contents["glance"])
    contents["disagreements"] = contents["disagreements"][:MAX_DISAGREEMENTS]
    contents["diagnoses"] = [row for row in contents["diagnoses"] if row["layer"] is None]
    return contents


def _summarise_with_sizes(
    connection: duckdb.DuckDBPyConnection,
    recommended: Sequence[Mapping[str, Any]],
    sizes: Sequence[str],
) -> dict[str, Sequence[summary.Statement]]:
    topics: dict[str, Sequence[summary.Statement]] = {}
    if sizes:
        topics["Sizes"] = sizes
    return topics | summary.summarise_results(connection, recommended)


def _format_export_option(facts: Mapping[str, Any]) -> str:
    """The argument that names the configuration of the run in a command on the page."""
    configuration = str(facts.get("configuration", "")).removeprefix(f"{Path.cwd()}/")
    if configuration in ("", DEFAULT_CONFIGURATION):
        return ""
    return f" {configuration}"


def _explain_names(
    connection: duckdb.DuckDBPyConnection, names: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    """The sections of "What the names mean": names of the configuration, and scored metrics."""
    meanings: dict[str, Mapping[str, str]] = {}
    for section in ("selectors", "repairs", "healings"):
        if names.get(section):
            meanings[section] = names[section]

    scored_metrics = {
        row["metric"] for row in query_rows(connection, "SELECT DISTINCT metric FROM relevance")
    }
    meanings["metrics"] = {
        name: f"Relevance of a unit: {metric.help}."
        for name, metric in METRICS.items()
        if name in scored_metrics
    }
    return meanings


def _fill_explorer(variants: list[dict[str, Any]], keep: float) -> dict[str, Any]:
    """The content of section "Explore": its controls, its figures as pictures, and their data."""
    points = explorer.list_points(variants)
    specifications = explorer.fill_specifications(points, keep)
    models = dict.fromkeys(point["model"] for point in points)

    controls: dict[str, list[Any]] = {}
    for column in CONTROLS:
        control_values = dict.fromkeys(
            point[column] for point in points if point["selector"] != "none"
        )
        controls[column] = list(control_values)
    stills: dict[str, list[Markup]] = {}
    for name, specification in specifications.items():
        drawings = [explorer.draw_still(specification, points, model) for model in models]
        stills[name] = [Markup(drawing) for drawing in drawings]

    data = {"variants": points, "figures": specifications}
    return {
        "controls": controls,
        "stills": stills,
        "explorer_data": Markup(format_json(data)),
        "vega_scripts": Markup(explorer.bundle_scripts()) if specifications else "",
    }


def format_json(value: Any) -> str:
    """JSON text that cannot close the script element around it."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def glance_at_calibrations(layers: list[dict[str, Any]]) -> list[CalibrationGlance]:
    """For each calibration: layers that can be removed one at a time, and the most relevant ones.

    layers: the answer to `which_layers_matter`, the most relevant units first
    """
    layer_rows = [row for row in layers if _has_accuracy_verdict(row)]
    groups = group_rows(layer_rows, "model", "calibration").items()
    return [
        _glance_at_calibration(model, calibration, calibration_rows)
        for (model, calibration), calibration_rows in groups
    ]


def _has_accuracy_verdict(row: Mapping[str, Any]) -> bool:
    """Whether a row is about one layer and has its accuracy relevance, or why it has none."""
    is_layer = row["component"] == "layer" and row["n_draws"] is None
    return is_layer and (row["accuracy"] is not None or bool(row["accuracy_reason"]))


def _glance_at_calibration(
    model: str, calibration: str, layer_rows: list[dict[str, Any]]
) -> CalibrationGlance:
    scored_rows = [row for row in layer_rows if row["accuracy"] is not None]
    reasons = [row["accuracy_reason"] for row in layer_rows if row["accuracy"] is None]
    removable_layers = [row["layer"] for row in scored_rows if row["verdict"] != "matters"]
    harmful_layers = [row["layer"] for row in scored_rows if row["verdict"] == "better without"]
    relevant_rows = [row for row in scored_rows if row["verdict"] == "matters"]
    return CalibrationGlance(
        model=model,
        calibration=calibration,
        free=removable_layers[::-1],
        better_without=harmful_layers,
        top=relevant_rows[:N_TOP_LAYERS],
        n_layers=len(layer_rows),
        n_samples=max(row["accuracy_samples"] or 0 for row in layer_rows),
        reason=reasons[0] if reasons else None,
    )


def flatten_facts(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as (name, value) rows; names of inner facts include the outer name."""
    flat_facts: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            flat_facts += flatten_facts(value, f"{label} · ")
        elif isinstance(value, str):
            flat_facts.append((label, value))
        else:
            flat_facts.append((label, json.dumps(value, ensure_ascii=False)))
    return flat_facts

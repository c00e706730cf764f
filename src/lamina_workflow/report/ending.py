"""The last lines of a run that succeeded: the best variant or which layers matter, and its files.

`python -m lamina_workflow.report.ending` prints them, from the tables under `results/` of the
current folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from lamina import paths
from lamina.errors import report_errors
from lamina.models.units import donor_of
from lamina_workflow.report import database, shell
from lamina_workflow.report.answers import answer_question, recommendations
from lamina_workflow.report.formatting import format_percent
from lamina_workflow.report.page import CalibrationGlance, glance_at_calibrations
from lamina_workflow.report.recommendation import judge, read_handles

KEEP = 0.95
MAX_NAMED = 5  # calibrations, and layers of each, that are named


def summarise_run(results: str | Path = "results", views: str | Path = paths.VIEWS) -> list[str]:
    """What to look at first in a folder of results.

    The best variant is the one with the most layers removed among those that the report recommends
    for single tasks; one that keeps 95 % with certainty comes before others. If nothing was pruned,
    the lines say which layers can be removed and which matter.
    """
    tables = sorted(Path(results, "tables").glob("*.parquet"))
    with database.connect_views(views, tables) as connection:
        recommended = recommendations(connection, KEEP, None)
        handles = read_handles(connection)
        layer_lines = _describe_layers(connection)
    if recommended or not layer_lines:
        first_lines = [f"best variant  {_describe_best(recommended, handles)}"]
    else:
        first_lines = layer_lines
    return [
        *first_lines,
        *_warn_of_guessing(recommended),
        f"report        {results}/report.html",
        f"database      {results}/lamina.duckdb (make sql, or lamina sql)",
    ]


def _describe_best(recommended: Sequence[dict[str, Any]], handles: Mapping[str, str]) -> str:
    enough_rows = [
        row
        for row in recommended
        if row["question"] == "task" and row["kept_enough"] and not row["at_chance"]
    ]
    if not enough_rows:
        return "none keeps 95 % of its calibration's task"
    best_row = max(enough_rows, key=lambda row: (row["certain"], row["layers"], row["kept"]))

    removed_units = [unit for unit in best_row["units"].split() if not donor_of(unit)]
    unit_words = "layers"
    if best_row["component"] != "layer":
        unit_words = "sub-layers (attentions and MLPs)"
    few_documents = ", too few for an interval" if best_row["kept_reason"] else ""
    name = best_row["variants"][0]
    handle = f" ({handles[name]})" if name in handles else ""
    return (
        f"{name}{handle} keeps "
        f"{format_percent(best_row['kept'], best_row['kept_stderr'])} % of {best_row['tasks']} "
        f"({best_row['n_samples']} documents{few_documents}) without {len(removed_units)} of its "
        f"{unit_words}. {judge(best_row, KEEP, None).text}"
    )


def _warn_of_guessing(recommended: Sequence[dict[str, Any]]) -> list[str]:
    """A line about the calibrations at whose task the base model is at chance."""
    guessed_tasks = [
        f"{row['model']} on {row['name']}"
        for row in recommended
        if row["question"] == "task" and row["at_chance"]
    ]
    if not guessed_tasks:
        return []
    return [
        f"warning       the base model guesses: {', '.join(guessed_tasks)}. Nothing can be lost "
        "there, so these scores say nothing about layers. Use another task, examples in the "
        "prompt (num_fewshot), or the model's chat template."
    ]


def _describe_layers(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Which layers of the first calibrations can be removed one at a time, and which matter."""
    reliabilities = {
        (row["model"], row["calibration"]): row["value"]
        for row in answer_question(connection, "how_sure_rankings_are")
    }
    glances = [
        glance
        for glance in glance_at_calibrations(answer_question(connection, "which_layers_matter"))
        if glance["free"] or glance["top"]
    ]
    lines = []
    for glance in glances[:MAX_NAMED]:
        reliability = reliabilities.get((glance["model"], glance["calibration"]))
        lines.append(f"layers        {_describe_glance(glance, reliability)}")
    if len(glances) > MAX_NAMED:
        lines.append(f"              and {len(glances) - MAX_NAMED} more calibrations")
    return lines


def _describe_glance(glance: CalibrationGlance, reliability: float | None) -> str:
    free_layers = _list_layers(glance["free"])
    top_layers = _list_layers([row["layer"] for row in glance["top"]])
    sentence = (
        f"{glance['model']} on {glance['calibration']}: {free_layers} of {glance['n_layers']} "
        f"layers can go one at a time, as far as {glance['n_samples']} samples can tell; "
        f"{top_layers} matter most"
    )
    if reliability is None:
        return sentence
    return f"{sentence} (reliability of the ranking {reliability:.2f})"


def _list_layers(layers: Sequence[int]) -> str:
    """The first few layers as text, in the order given."""
    if not layers:
        return "none"
    listed = ", ".join(str(layer) for layer in layers[:MAX_NAMED])
    n_more = len(layers) - MAX_NAMED
    return f"{listed} and {n_more} more" if n_more > 0 else listed


def main() -> None:
    lines = summarise_run()
    database.open_database(shell.DATABASE).close()  # before anybody is sent there
    print("\n".join(lines))


if __name__ == "__main__":
    with report_errors():
        main()

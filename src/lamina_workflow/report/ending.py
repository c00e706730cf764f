"""The last lines of a successful run: its variants as a table, the best one and how to take it.

`python -m lamina_workflow.report.ending [CONFIGURATION]` prints them, from the tables under
`results/` of the current folder, as `report` in the configuration asks.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from lamina import paths
from lamina.errors import report_errors
from lamina.models.export.packed_size import describe_packed_size
from lamina.models.units import removals_among
from lamina.options.repairs import Repair
from lamina_workflow.config.configuration import Report
from lamina_workflow.config.text import DEFAULT_CONFIGURATIONS, read_configuration
from lamina_workflow.report import database, shell
from lamina_workflow.report.answers import answer_question, query_rows, recommendations
from lamina_workflow.report.formatting import format_percent
from lamina_workflow.report.judgements import compare_scores, read_judgements
from lamina_workflow.report.page import CalibrationGlance, glance_at_calibrations
from lamina_workflow.report.recommendation import find_runtimes, judge, list_loadable, read_handles
from lamina_workflow.report.variant_table import print_variants

DEFAULT_REPORT = Report()
MAX_NAMED = 5  # calibrations, and layers of each, that are named


def summarise_run(
    results: str | Path = "results",
    wanted: Report = DEFAULT_REPORT,
    configuration: str = "",
    stock_repairs: Collection[str] = ("none",),
) -> list[str]:
    """What to look at first in a folder of results.

    The best variant has the most layers removed among those that the report recommends for single
    tasks. One that certainly keeps enough comes before others. If none keeps enough, the nearest
    one is named. If nothing was pruned, the lines say which layers can be removed and which matter.

    wanted: What a variant must keep.
    configuration: The argument that names the configuration of the run in a command.
    stock_repairs: `none`, and the repairs that leave no patch in the model.
    """
    with database.connect_views(list_tables(results)) as connection:
        allowed = None
        if wanted.must_load:
            runtimes = find_runtimes(connection, stock_repairs)
            allowed = list_loadable(runtimes, [wanted.must_load])
        recommended = recommendations(
            connection, wanted.keep, wanted.general_text, wanted.counted_from, allowed
        )
        handles = read_handles(connection)
        layer_lines = _describe_layers(connection)
        [sizes] = query_rows(
            connection, "SELECT max(removed) AS largest FROM variants WHERE selector <> 'none'"
        )
    only_moves = sizes["largest"] is not None and sizes["largest"] < 1
    if only_moves:
        first_lines = [
            "best variant  none is smaller than the base model, so none is recommended; the report "
            "compares their scores"
        ]
    elif recommended or not layer_lines:
        first_lines = _describe_recommendation(recommended, wanted, handles, configuration)
    else:
        first_lines = layer_lines
    return [
        *first_lines,
        *_warn_of_guessing(recommended),
        *_describe_judgements(Path(results), handles, wanted.keep),
        f"report        {results}/report.html",
        f"database      {results}/lamina.duckdb (lamina sql)",
    ]


def list_tables(results: str | Path) -> list[Path]:
    """The files of the tables in a folder of results."""
    return sorted(Path(results, "tables").glob("*.parquet"))


def _describe_recommendation(
    recommended: Sequence[dict[str, Any]],
    wanted: Report,
    handles: Mapping[str, str],
    configuration: str,
) -> list[str]:
    """The best variant and how to take it; if none keeps enough, the nearest one."""
    if not recommended and not wanted.must_load:
        return [
            "best variant  none is recommended, because none was measured on its calibration's "
            "task (benchmarks.tasks)"
        ]
    answers = [row for row in recommended if row["question"] == "task"]
    enough = [row for row in answers if row["kept_enough"] and not row["at_chance"]]
    measured = [row for row in answers if row["kept"] is not None]
    enough_words = f"{100 * wanted.keep:g} % of its calibration's task"
    if wanted.general_text is not None:
        enough_words += f" at {wanted.general_text:g} times the perplexity of text or less"
    if wanted.must_load:
        enough_words += f" and loads in {wanted.must_load}"
    lines = []
    if enough:
        label = "best variant "
        row = max(enough, key=lambda row: (bool(row["certain"]), row["layers"], row["kept"]))
    elif measured:
        lines.append(f"best variant  none keeps {enough_words}")
        label = "nearest      "
        row = max(measured, key=lambda row: row["kept"])
    elif answers:
        lines.append(f"best variant  no test shows which keeps {enough_words}, see below")
        with_text = [row for row in answers if row["text_ratio"] is not None]
        if not with_text:
            return lines
        label = "best on text "
        row = min(with_text, key=lambda row: row["text_ratio"])
    else:
        return [f"best variant  none keeps {enough_words}"]
    lines.append(f"{label} {_describe_variant(row, wanted, handles)}")
    return lines + _list_commands(row["variants"][0], handles, configuration)


def _describe_variant(row: dict[str, Any], wanted: Report, handles: Mapping[str, str]) -> str:
    """Name, share kept, size and verdict of a variant, on its calibration's task."""
    removed_units = removals_among((row["units"] or "").split())
    unit_words = "layers"
    if row["component"] != "layer":
        unit_words = "sub-layers (attentions and MLPs)"
    kept = ""
    if row["kept"] is not None:
        few_documents = ", too few for an interval" if row["kept_reason"] else ""
        kept = (
            f"keeps {format_percent(row['kept'], row['kept_stderr'])} % of {row['tasks']} "
            f"({row['n_samples']} documents{few_documents}) "
        )
    name = row["variants"][0]
    handle = f" ({handles[name]})" if name in handles else ""
    verdict = judge(row, wanted.keep, wanted.general_text).text
    return f"{name}{handle} {kept}without {len(removed_units)} of its {unit_words}. {verdict}"


def _list_commands(variant: str, handles: Mapping[str, str], configuration: str) -> list[str]:
    """The commands that export a variant, try it and load it."""
    name = handles.get(variant, variant)
    return [
        f"take it       lamina export {name}{configuration}",
        f"try it        lamina chat {name}",
        f'load it       lamina.load("{variant}")',
    ]


def _warn_of_guessing(recommended: Sequence[dict[str, Any]]) -> list[str]:
    """A line about tasks on which the base model is not significantly above chance."""
    guessed_tasks = [
        f"{row['model']} on {row['name']} (n = {row['n_samples']:,.0f})"
        for row in recommended
        if row["question"] == "task" and row["at_chance"]
    ]
    if not guessed_tasks:
        return []
    return [
        "warning       the test questions do not show that the base model is above chance: "
        f"{', '.join(guessed_tasks)}. So the share of its score that a variant keeps is unknown. "
        "Use more questions, another task, few-shot examples (num_fewshot) or the model's chat "
        "template."
    ]


def _describe_judgements(results: Path, handles: Mapping[str, str], keep: float) -> list[str]:
    """A line for each file of new questions that `lamina judge` measured."""
    files = sorted(map(str, (results / "judged").rglob("*.json")))
    lines = []
    for judgement in read_judgements(files, results):
        scores = compare_scores(judgement, keep)
        lines.append(
            f"judged        {handles.get(judgement.variant, judgement.variant)} on the "
            f"{scores.n_samples} new questions of {judgement.questions}: {scores.pruned}, base model "
            f"{scores.base}, difference {scores.difference}. Keeps {scores.kept}."
        )
    return lines


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
        f"layers can be removed one at a time, as far as {glance['n_samples']} samples show; "
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


def describe_packed_sources(models: Mapping[str, Any]) -> list[str]:
    """A line for each GGUF file of a configuration: exports of repaired variants are larger.

    models: The section of the configuration, as it is written.
    """
    lines = []
    for model in models.values():
        source = Path(model["source"])
        if source.suffix == ".gguf" and source.is_file():
            packed = describe_packed_size(source.name, source.stat().st_size, "VARIANT", True)
            lines.append(f"size          {packed}")
    return lines


def _list_folded_repairs(repairs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The repairs of a configuration that are folded into weights and leave no patch."""
    folded = []
    for name, repair in repairs.items():
        kind = Repair.kind_of(repair["method"])
        if kind is not None and not kind.LINEAR:
            folded.append(name)
    return folded


def main(arguments: Sequence[str]) -> None:
    wanted = DEFAULT_REPORT
    configuration = ""
    source_lines: list[str] = []
    stock_repairs = ["none"]
    if arguments and arguments[0]:
        written = read_configuration(arguments[0])
        wanted = Report.model_validate(written.get("report") or {})
        stock_repairs += _list_folded_repairs(written.get("repairs") or {})
        source_lines = describe_packed_sources(written.get("models") or {})
        if arguments[0] not in DEFAULT_CONFIGURATIONS:
            configuration = f" {arguments[0]}"
    lines = summarise_run(wanted=wanted, configuration=configuration, stock_repairs=stock_repairs)
    with database.connect_views(list_tables(paths.RESULTS)) as connection:
        print_variants(connection, sys.stdout)
    database.open_database(shell.DATABASE).close()  # check it before sending anybody there
    print("\n".join([*lines, *source_lines]))


if __name__ == "__main__":
    with report_errors():
        main(sys.argv[1:])

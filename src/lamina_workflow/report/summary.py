"""The findings of a run, as the few sentences and tables of the report's section "In short".

Each is computed from the tables. Bad results are reported like good ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import duckdb

from lamina.relevance.statistics import Z95
from lamina_workflow.report import cautions
from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.style import format_repair
from lamina_workflow.report.formatting import DASH, format_signed
from lamina_workflow.report.paired_tests import AS_CHOSEN

QUESTIONS = (
    "which_layers_matter",
    "which_variants_there_are",
    "how_metrics_agree",
    "how_healing_went",
    "how_sure_rankings_are",
    "which_selector_wins",
    "what_repair_gave_back",
    "what_is_left_of_choosing_and_writing",
    "how_far_variants_vary_between_draws",
    "where_outputs_were_not_finite",
    "what_calibrations_share_with_tests",
    "which_questions_were_cut",
    "which_questions_no_score_decides",
    "which_repairs_hurt",
)
Rows = Sequence[Mapping[str, Any]]
Statement = str | list[dict[str, Any]]  # a sentence, or a table


def summarise_results(
    connection: duckdb.DuckDBPyConnection, recommended: Rows
) -> dict[str, list[Statement]]:
    """The results by topic, without topics that have none.

    recommended: the variants that the report recommends, from `answers.recommendations`
    """
    topics: dict[str, list[Statement]] = {
        "Removable layers": [*describe_removable_layers(connection)],
        "Metrics": compare_metrics_with_accuracy(connection),
        "Selectors": compare_selectors(connection, recommended),
        "Repairs": describe_repairs(connection),
        "Cautions": [],
    }
    for warn in CAUTIONS:
        topics["Cautions"] += warn(connection)
    return {topic: statements for topic, statements in topics.items() if statements}


def describe_removable_layers(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many layers each model can lose one at a time without a significant loss of accuracy.

    The numbers are those of the calibrations with the fewest and the most such layers.
    """
    layer_rows = [
        row
        for row in answer_question(connection, "which_layers_matter")
        if row["component"] == "layer" and row["n_draws"] is None and row["accuracy"] is not None
    ]
    sentences = []
    for (model,), model_rows in group_rows(layer_rows, "model").items():
        n_removable: dict[str, int] = {}
        for (calibration,), rows in group_rows(model_rows, "calibration").items():
            n_removable[calibration] = sum(_is_removable(row) for row in rows)
        fewest = min(n_removable, key=n_removable.__getitem__)
        most = max(n_removable, key=n_removable.__getitem__)
        n_layers = len({row["layer"] for row in model_rows})
        n_samples = max(row["accuracy_samples"] for row in model_rows)

        removable_layers = f"{n_removable[fewest] or 'none'} of {n_layers} layers ({fewest})"
        if most != fewest:
            removable_layers = (
                f"between {n_removable[fewest]} ({fewest}) and {n_removable[most]} ({most}) of "
                f"{n_layers} layers"
            )
        sentences.append(
            f"{model}: {removable_layers} can be removed one at a time without a significant loss "
            f"of accuracy (n = {n_samples} samples)."
        )
    return sentences


def _is_removable(row: Mapping[str, Any]) -> bool:
    return row["accuracy_low"] is not None and row["accuracy_low"] <= 0


def compare_metrics_with_accuracy(connection: duckdb.DuckDBPyConnection) -> list[Statement]:
    """How each metric orders the layers of a task, compared with accuracy."""
    layer_rows = [
        row
        for row in answer_question(connection, "how_metrics_agree")
        if row["component"] == "layer" and row["within"] is not None
    ]
    statements: list[Statement] = []
    for (model,), model_rows in group_rows(layer_rows, "model").items():
        n_tasks = max(row["n_calibrations"] for row in model_rows)
        over_tasks = f", mean and range over at most {n_tasks} tasks" if n_tasks > 1 else ""
        statements.append(
            f"{model}: rank correlation of each metric, within a task, with the accuracy that "
            f"single removals cost{over_tasks}."
        )
        table = []
        for row in model_rows:
            entry = {"metric": row["metric"], "correlation": format_signed(row["within"])}
            if n_tasks > 1:
                low = format_signed(row["within_low"])
                high = format_signed(row["within_high"])
                entry["least to most"] = f"{low} to {high}"
            table.append(entry)
        statements.append(table)
    return statements


def compare_selectors(connection: duckdb.DuckDBPyConnection, recommended: Rows) -> list[Statement]:
    """The most important selectors against all others with the same repair and healing.

    These are the selector of each recommended recipe, and selector accuracy (or the first one if
    there is none). They are compared as plans are meant to be used and without repair, over the
    calibrations' own tasks and all sizes.
    """
    selector_pairs = answer_question(connection, "which_selector_wins")
    recommended_rows = [row for row in recommended if row["question"] == "recipe"]
    if not recommended_rows:
        recommended_rows = [row for row in recommended if row["kept_enough"]][:1]
    recipes = [(row["selector"], row["repair"], row["healing"]) for row in recommended_rows]

    selectors = {row["selector"] for row in selector_pairs}
    if selectors:
        reference_selector = min(selectors, key=lambda name: (name != "accuracy", name))
        recipes.insert(0, (reference_selector, AS_CHOSEN, "none"))
        recipes.append((reference_selector, "none", "none"))

    statements: list[Statement] = []
    for selector, repair, healing in dict.fromkeys(recipes):
        table = _tabulate_rivals(selector_pairs, selector, repair, healing)
        if not table:
            continue
        statements.append(
            f"{_describe_treatment(repair, healing)}: selector {selector} against the others on "
            "the same tasks and sizes, in paired tests at 5 %, corrected for multiple testing."
        )
        statements.append(table)
    return statements


def _describe_treatment(repair: str, healing: str) -> str:
    if repair == AS_CHOSEN:
        return "Each plan with the repair that its selector chose for it"
    if (repair, healing) == ("none", "none"):
        return "Without repair"
    return f"With repair {format_repair(repair, healing)}"


@dataclass(frozen=True)
class RivalResult:
    """A selector against a rival at one size: on how many tasks it is better or worse."""

    rival: str
    rival_chosen_for: str | None  # repair with which the rival chose its plans
    n_better: int
    n_worse: int
    n_undecided: int
    n_accuracies: int  # tasks with an accuracy
    mean_gain: float  # of accuracy over these tasks; above 0 if the selector is the better one


def _tabulate_rivals(pairs: Rows, selector: str, repair: str, healing: str) -> list[dict[str, Any]]:
    """A row for each rival of the selector; empty if the selector was not compared."""
    results_by_rival: dict[str, list[RivalResult]] = {}
    for result in _list_rival_results(pairs, selector, repair, healing):
        results_by_rival.setdefault(result.rival, []).append(result)

    table = []
    for rival, rival_results in sorted(results_by_rival.items()):
        rival_name = rival
        chosen_for = {
            result.rival_chosen_for for result in rival_results if result.rival_chosen_for
        }
        if chosen_for and repair == AS_CHOSEN:
            rival_name = f"{rival} with {', '.join(sorted(chosen_for))}"
        elif chosen_for and (repair, healing) == ("none", "none"):
            rival_name = f"{rival} (bare; chosen for a repair)"
        n_tasks = sum(result.n_accuracies for result in rival_results)
        summed_points = sum(
            100 * result.mean_gain * result.n_accuracies for result in rival_results
        )
        entry = {
            "against": rival_name,
            "better": sum(result.n_better for result in rival_results),
            "worse": sum(result.n_worse for result in rival_results),
            "undecided": sum(result.n_undecided for result in rival_results),
            "points of accuracy, mean": format_signed(summed_points / n_tasks, "+.1f")
            if n_tasks
            else DASH,
        }
        table.append(entry)
    return table


def _list_rival_results(
    pairs: Rows, selector: str, repair: str, healing: str
) -> Iterator[RivalResult]:
    """The selector's comparisons with that repair and healing, seen from its side."""
    for row in pairs:
        if (row["repair"], row["healing"]) != (repair, healing):
            continue
        mean_gain = row["mean_accuracy"] or 0
        counts = {"n_undecided": row["undecided"], "n_accuracies": row["n_accuracies"]}
        if row["selector"] == selector:
            yield RivalResult(
                row["rival"],
                row["rival_chosen_for"],
                row["better"],
                row["worse"],
                mean_gain=mean_gain,
                **counts,
            )
        elif row["rival"] == selector:
            yield RivalResult(
                row["selector"],
                row["chosen_for"],
                row["worse"],
                row["better"],
                mean_gain=-mean_gain,
                **counts,
            )


def describe_repairs(connection: duckdb.DuckDBPyConnection) -> list[Statement]:
    """How often each repair helped and hurt, on the calibrations' own tasks and on other texts."""
    repaired_rows = [
        row
        for row in answer_question(connection, "what_repair_gave_back")
        if row["gain"] is not None
    ]
    repair_table: list[dict[str, Any]] = []
    for repair, repair_rows in _group_by_repair(repaired_rows):
        task_rows = [row for row in repair_rows if not _is_of_text(row)]
        if task_rows:
            repair_table.append(_tabulate_accuracies(repair, task_rows))
        text_rows = [row for row in repair_rows if _is_of_text(row)]
        for (text,), rows_of_text in sorted(group_rows(text_rows, "task").items()):
            repair_table.append(_tabulate_perplexities(repair, text, rows_of_text))
    if not repair_table:
        return []
    return [
        "What repairs recovered: mean points of accuracy, and the perplexity of the variant that "
        "the repair helped least.",
        repair_table,
    ]


def _is_of_text(row: Mapping[str, Any]) -> bool:
    return not row["own"] or row["metric"] == "perplexity"


def _tabulate_accuracies(repair: str, changes: Rows) -> dict[str, Any]:
    mean_gain = 100 * fmean(row["gain"] for row in changes)
    mean_loss = 100 * fmean(row["loss"] for row in changes)
    recovered = f"{format_signed(mean_gain, '+.1f')} points"
    if round(mean_loss, 1) > 0:
        recovered += f" of {mean_loss:.1f} lost"
    else:
        recovered += "; pruning had cost nothing"
    return {
        "repair": repair,
        "measured on": "own tasks",
        **_count_significant(changes),
        "recovered": recovered,
    }


def _tabulate_perplexities(repair: str, text: str, changes: Rows) -> dict[str, Any]:
    """The variant that the repair helped least; a mean would hide it."""
    worst = max(changes, key=lambda row: row["value"] / row["pruned_value"])
    recovered = (
        f"perplexity at worst {worst['pruned_value']:.1f} → {worst['value']:.1f} "
        f"(base {worst['base_value']:.2f})"
    )
    return {
        "repair": repair,
        "measured on": text,
        **_count_significant(changes),
        "recovered": recovered,
    }


def _count_significant(changes: Rows) -> dict[str, int]:
    """How many gains have a 95 % interval above 0, and how many have one below 0."""
    n_helped = 0
    n_hurt = 0
    for row in changes:
        if row["gain_stderr"] is None:
            continue
        half_width = Z95 * row["gain_stderr"]
        n_helped += row["gain"] > half_width
        n_hurt += row["gain"] < -half_width
    return {
        "variants": len(changes),
        "significantly helped": n_helped,
        "significantly hurt": n_hurt,
    }


def _group_by_repair(changes: Rows) -> list[tuple[str, Rows]]:
    """The rows of each repair under its name: repairs first, then healings, then both."""
    groups = group_rows(changes, "repair", "healing")
    return [
        (format_repair(repair, healing), groups[repair, healing])
        for repair, healing in style.list_repairs(changes)
    ]


def compare_writing_with_choosing(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many right choices are left, and how many right answers when the model itself writes."""
    kept_shares = []
    variant_rows = answer_question(connection, "what_is_left_of_choosing_and_writing")
    for repair, repair_rows in _group_by_repair(variant_rows):
        choice_kept = 100 * fmean(row["choice_kept"] for row in repair_rows)
        written_kept = 100 * fmean(row["written_kept"] for row in repair_rows)
        kept_shares.append(
            f"{repair} {choice_kept:.0f} % and {written_kept:.0f} % "
            f"(n = {len(repair_rows)} variants)"
        )
    if not kept_shares:
        return []
    return [
        "Mean share of the base model's score that is kept when choices are scored, and when "
        f"answers to the same questions are written: {'; '.join(kept_shares)}."
    ]


# The sentences of the topic "Cautions", in this order.
CAUTIONS = (
    cautions.list_harmful_repairs,
    cautions.list_worse_smaller_removals,
    cautions.list_likelier_documents,
    cautions.list_ineffective_healings,
    cautions.describe_reliability,
    compare_writing_with_choosing,
    cautions.describe_spread_of_draws,
    cautions.list_nonfinite_units,
    cautions.describe_shared_documents,
    cautions.count_truncated_questions,
    cautions.count_undecided_questions,
)

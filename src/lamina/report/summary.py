"""The results of a run in the few sentences that its report calls "In short"; each is computed from the tables."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import duckdb

from lamina.relevance.power import ENOUGH, samples_for
from lamina.tables.answers import answer

QUESTIONS = (
    "how_many_layers_can_go_alone",
    "how_alike_metrics_order_layers",
    "how_sure_rankings_are",
    "how_often_each_selector_wins",
    "how_often_repairs_help",
    "what_repairs_do_to_text",
    "how_much_of_writing_is_left",
    "how_far_layers_vary_between_draws",
    "how_far_variants_vary_between_draws",
    "where_outputs_were_not_finite",
    "what_calibrations_share_with_tests",
)


def summary(connection: duckdb.DuckDBPyConnection, take: Sequence[Mapping[str, Any]]) -> list[str]:
    """The results in a few plain sentences; poor numbers are reported like good ones."""
    return [
        sentence
        for sentence in (
            *free_layers(connection),
            *agreement(connection),
            *power(connection),
            *contests(connection, take),
            *repairs(connection),
            *text_repairs(connection),
            *written(connection),
            *replicates(connection),
            not_finite(connection),
            *shared_documents(connection),
        )
        if sentence
    ]


def free_layers(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many layers each model can lose one at a time without a measurable cost; the range over calibrations."""
    counts = answer(connection, "how_many_layers_can_go_alone")
    sentences = []
    for model in dict.fromkeys(row["model"] for row in counts):
        mine = [row for row in counts if row["model"] == model]
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
    pairs = answer(connection, "how_alike_metrics_order_layers")
    return [
        f"{row['model']}: rank correlation with what single removals cost in accuracy, over the layers and at most "
        f"{row['tasks']} calibrations: {row['told']}.".replace("-", "−")
        for row in pairs
    ]


def power(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """On how many calibrations accuracy ranks layers surely, and how many samples the least sure one would need."""
    reliabilities = answer(connection, "how_sure_rankings_are", wanted=ENOUGH)
    sentences = []
    for model in dict.fromkeys(row["model"] for row in reliabilities):
        mine = [row for row in reliabilities if row["model"] == model]
        least = mine[0]
        sure = sum(row["value"] >= ENOUGH for row in mine)
        sentence = (
            f"{model}: a ranking of layers by accuracy is sure (it would agree by {ENOUGH:.2f} or more with one from "
            f"other samples) on {sure} of {len(mine)} calibrations. The least sure is {least['calibration']}: "
            f"{least['value']:.2f} [{least['ci_low']:.2f}, {least['ci_high']:.2f}] from {least['n_samples']} samples"
        )
        if least["value"] < ENOUGH:
            needed = samples_for(ENOUGH, least["value"], least["n_samples"])
            sentence += f"; about {needed:,.0f} would do" if isfinite(needed) else "; nothing says how many would do"
        if least["other"] and least["other"][1] > least["value"]:
            sentence += f", where {least['other'][0]} has {least['other'][1]:.2f} from the same samples"
        sentences.append(f"{sentence}.")
    return sentences


def contests(connection: duckdb.DuckDBPyConnection, take: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each recommended recipe's selector against the others with the same repair, and selector accuracy (or the first
    one) against the others without repair; over own tasks and sizes."""
    recipes = [row for row in take if row["question"] == "recipe"] or [row for row in take if row["kept_enough"]][:1]
    asked = dict.fromkeys((row["selector"], row["repair"], row["healing"]) for row in recipes)
    contests = answer(connection, "how_often_each_selector_wins")
    asked |= dict.fromkeys((row["selector"], "none", "none") for row in contests[:1])
    return [sentence for champion in asked for sentence in contest(contests, *champion)]


def contest(contests: Sequence[Mapping[str, Any]], champion: str, repair: str, healing: str) -> list[str]:
    """A selector against every other one with the same repair; empty if it was not compared."""
    outcomes = [
        f"{row['other']} {row['won']} / {row['lost']} / {row['n'] - row['won'] - row['lost']}"
        + ("" if row["points"] is None else f" (on average {row['points']:+.1f} points of accuracy)")
        for row in contests
        if (row["selector"], row["repair"], row["healing"]) == (champion, repair, healing)
    ]
    if not outcomes:
        return []
    ways = " then ".join(part for part in (repair, healing) if part != "none")
    how = f"With repair {ways}" if ways else "Without repair"
    return [
        f"{how}, selector {champion} against the others on the same task and size, counted as better / worse / "
        "undecided at 5 %, by paired tests corrected for their number: "
        f"{'; '.join(outcomes)}.".replace("-", "−")
    ]


def repairs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How often each kind of repair helped and hurt on the calibrations' own tasks."""
    repairs_helping = answer(connection, "how_often_repairs_help")
    sentences = []
    for row in repairs_helping:
        parts = [row[kind] for kind in ("repair", "healing") if row[kind] != "none"]
        mean = ""
        if row["gain"] is not None:
            mean = f" Mean change {row['gain']:+.1f} points of accuracy, where pruning had cost {row['loss']:.1f}."
        sentences.append(
            f"Repair by {' then '.join(parts)} helped in {row['better']} of {row['n']} variants, hurt in "
            f"{row['worse']}; the rest is undecided at 95 %.{mean}".replace("-", "−")
        )
    return sentences


def text_repairs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The effect of a repair, fitted on one task, on texts that are not the calibration's own."""
    changes = answer(connection, "what_repairs_do_to_text")
    return [
        f"On {row['task']}, documents that no repair was fitted on, "
        f"{' then '.join(row[kind] for kind in ('repair', 'healing') if row[kind] != 'none')} helped in "
        f"{row['better']} of {row['n']} variants and hurt in {row['worse']}: median perplexity {row['pruned']:.1f} "
        f"after pruning, {row['repaired']:.1f} repaired, {row['highest']:.1f} at worst (base {row['base']:.2f})."
        for row in changes
    ]


def written(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many right choices are left, and how many right answers to the same questions if the model writes them."""
    answers = answer(connection, "how_much_of_writing_is_left")
    shares = [
        f"{' then '.join(row[kind] for kind in ('repair', 'healing') if row[kind] != 'none') or 'without repair'} "
        f"{row['chosen']:.0f} % and {row['written']:.0f} % (n = {row['n']} variants)"
        for row in answers
        if row["written"] is not None
    ]
    if not shares:
        return []
    return [
        "Left on average of the base model's right choices, and of its right answers to the same questions where it "
        f"writes them itself: {'; '.join(shares)}."
    ]


def replicates(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How much the relevance of layers and the scores of variants depend on the samples, or the seed, that were
    drawn.
    """
    layers = answer(connection, "how_far_layers_vary_between_draws")
    kept = answer(connection, "how_far_variants_vary_between_draws")
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
    """Where a removal gave numbers that are not finite: they count as wrong, and readers must know this."""
    units = answer(connection, "where_outputs_were_not_finite")
    if not units:
        return ""
    named = ", ".join(f"{row['unit']} on {row['calibration']} ({row['most']} samples)" for row in units[:5])
    more = f" and {len(units) - 5} more" if len(units) > 5 else ""
    return f"Without these units the outputs were not finite on some samples, which count as wrong: {named}{more}."


def shared_documents(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many documents of calibrations share passages with test documents. Equal documents were refused before."""
    pairs = answer(connection, "what_calibrations_share_with_tests")
    if not pairs:
        return []
    shared = "; ".join(
        f"{pair['sharing']} of the {pair['documents']} documents of {pair['calibration']} with the {pair['tested']} of "
        f"{pair['task']} ({pair['near']} near duplicates)"
        for pair in pairs
        if pair["sharing"]
    )
    return [
        f"Passages of 13 words that calibrations share with test documents, in {len(pairs)} pairs of them: "
        f"{shared or 'nothing is shared'}."
    ]

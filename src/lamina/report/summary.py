"""The results of a run in the few sentences that its report calls "In short"; each is computed from the tables."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from math import isfinite
from statistics import fmean, median, stdev
from typing import Any

import duckdb

from lamina.relevance.statistics import Z95
from lamina.relevance.true_scores import SUFFICIENT_RELIABILITY, samples_for
from lamina.report.answers import answer, grouped
from lamina.report.figures import style
from lamina.report.figures.style import format_repair

QUESTIONS = (
    "which_layers_matter",
    "which_variants_there_are",
    "how_metrics_agree",
    "how_healing_went",
    "how_sure_rankings_are",
    "which_selector_wins",
    "what_searching_found",
    "what_repair_gave_back",
    "what_is_left_of_choosing_and_writing",
    "how_far_variants_vary_between_draws",
    "where_outputs_were_not_finite",
    "what_calibrations_share_with_tests",
    "which_questions_were_cut",
    "which_questions_no_score_decides",
    "which_repairs_hurt",
)
WAY = ("repair", "healing")
Rows = Sequence[Mapping[str, Any]]
Told = str | list[dict[str, Any]]  # a sentence, or a table


def summary(
    connection: duckdb.DuckDBPyConnection, take: Sequence[Mapping[str, Any]]
) -> dict[str, Sequence[Told]]:
    """The results in a few plain sentences and tables by topic, topics without any left out; poor numbers are reported
    like good ones.
    """
    topics: dict[str, Sequence[Told]] = {
        "Layers that can go": free_layers(connection),
        "Metrics": agreement(connection),
        "Selectors": contests(connection, take),
        "Repairs": repairs(answer(connection, "what_repair_gave_back")),
        "With care": [
            *surprises(connection),
            *healings(connection),
            *power(connection),
            *written(connection),
            *replicates(connection),
            *filter(None, [not_finite(connection)]),
            *shared_documents(connection),
            *cut_questions(connection),
            *undecided_questions(connection),
        ],
    }
    return {topic: sentences for topic, sentences in topics.items() if sentences}


def free_layers(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many layers each model can lose one at a time without a measurable cost; the range over calibrations."""
    known = [
        row for row in _layers(connection) if row["n_draws"] is None and row["accuracy"] is not None
    ]
    sentences = []
    for (model,), mine in grouped(known, "model").items():
        counts = {
            calibration: sum(
                row["accuracy_low"] is not None and row["accuracy_low"] <= 0 for row in layers
            )
            for (calibration,), layers in grouped(mine, "calibration").items()
        }
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        spread = (
            f"{counts[least] or 'none'} of {len({row['layer'] for row in mine})} layers on {least}"
        )
        spread += f" to {counts[most]} on {most}" if most != least else ""
        sentences.append(
            f"{model}: taken out one at a time, {spread} cost no accuracy that "
            f"{max(row['accuracy_samples'] for row in mine)} samples can show."
        )
    return sentences


def _layers(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    return [row for row in answer(connection, "which_layers_matter") if row["component"] == "layer"]


def agreement(connection: duckdb.DuckDBPyConnection) -> list[Told]:
    """How each metric orders the layers of a task, compared with accuracy."""
    found = answer(connection, "how_metrics_agree")
    known = [row for row in found if row["component"] == "layer" and row["within"] is not None]
    told: list[Told] = []
    for (model,), mine in grouped(known, "model").items():
        tasks = max(row["n_calibrations"] for row in mine)
        over = f", mean and range over at most {tasks} tasks" if tasks > 1 else ""
        told.append(
            f"{model}: rank correlation within a task with what single removals cost in accuracy{over}."
        )
        table = [{"metric": row["metric"], "correlation": _signed(row["within"])} for row in mine]
        for entry, row in zip(table, mine if tasks > 1 else (), strict=False):
            entry["least to most"] = (
                f"{_signed(row['within_low'])} to {_signed(row['within_high'])}"
            )
        told.append(table)
    return told


def _signed(value: float, form: str = ".2f") -> str:
    return f"{value:{form}}".replace("-", "−")


def surprises(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Variants that a repair made worse, and those that keep surely less than one without more units."""
    told = [
        row
        for row in answer(connection, "what_repair_gave_back")
        if row["own"] and row["gain"] is not None
    ]
    hurt = [row for row in told if row["certain"] and row["gain"] < 0]
    lines = [
        f"{format_repair(row['repair'], row['healing'])} after {row['removed']} out by {row['selector']} on "
        f"{row['calibration']} ({row['pruned_value']:.3g} to {row['value']:.3g} {row['metric']})"
        for row in hurt
    ]
    sentences = [f"A repair hurt: {_first(lines)}."] if lines else []
    lines = [
        f"{row['repair']} after {row['removed']} out by {row['selector']} on {row['calibration']} "
        f"({row['loss_bare']:.3g} to {row['loss_repaired']:.3g} nats per token, n = {row['n_loss']})"
        for row in answer(connection, "which_repairs_hurt")
    ]
    if lines:
        sentences.append(
            f"A repair hurt on held-out documents of its calibration, and none is taken: {_first(lines)}."
        )
    lines = []
    known = [
        row
        for row in answer(connection, "which_variants_there_are")
        if row["own_kept_stderr"] is not None
    ]
    recipes = grouped(known, "model", "calibration", "selector", "repair", "healing").values()
    for small, large in (
        (one, other) for sizes in recipes for one, other in combinations(sizes, 2)
    ):
        if small["removed"] > large["removed"]:
            small, large = large, small
        reach = Z95 * (small["own_kept_stderr"] ** 2 + large["own_kept_stderr"] ** 2) ** 0.5
        if small["removed"] and large["own_kept"] - small["own_kept"] > reach:
            lines.append(
                f"{small['selector']} on {small['calibration']}, {format_repair(small['repair'], small['healing'])}: "
                f"{100 * small['own_kept']:.0f} % kept with {small['removed']} out, "
                f"{100 * large['own_kept']:.0f} % with {large['removed']}"
            )
    return sentences + ([f"Fewer out is worse than more out: {_first(lines)}."] if lines else [])


def healings(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Trainings that lowered the loss on held-out samples by less than the error of the mean loss of their steps."""
    runs = grouped(
        answer(connection, "how_healing_went"),
        *("selector", "calibration", "model", "removed"),
        *WAY,
    )
    lines = []
    for (selector, calibration, _, removed, *way), steps in runs.items():
        losses = [row["loss"] for row in steps if row["loss"] is not None]
        checked = [row for row in steps if row["validation_loss"] is not None]
        left = [row["validation_loss"] for row in checked if row["chosen"]]
        if len(losses) < 2 or checked[0]["step"] or not left:
            continue
        first, last = checked[0]["validation_loss"], left[-1]
        if first - last < Z95 * stdev(losses) / len(losses) ** 0.5:
            rising = max(steps, key=lambda row: row["learning_rate"] or 0)["step"]
            lines.append(
                f"{format_repair(*way)} after {removed} out by {selector} on {calibration}: {first:.3f} to {last:.3f} in "
                f"{len(losses)} steps, the learning rate rising over {rising}"
            )
    return [f"A healing moved the loss by less than its error: {_first(lines)}."] if lines else []


def _first(lines: list[str], most: int = 4) -> str:
    return "; ".join(lines[:most]) + (
        f"; and {len(lines) - most} more" if len(lines) > most else ""
    )


def power(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """On how many calibrations accuracy ranks layers surely, and how many samples the least sure one would need."""
    reliabilities = answer(connection, "how_sure_rankings_are", wanted=SUFFICIENT_RELIABILITY)
    sentences = []
    for (model,), mine in grouped(reliabilities, "model").items():
        least = mine[0]
        sure = sum(row["value"] >= SUFFICIENT_RELIABILITY for row in mine)
        sentence = (
            f"{model}: a ranking of layers by accuracy is sure (Spearman's correlation with one from other samples is "
            f"{SUFFICIENT_RELIABILITY:.2f} or more) on {sure} of {len(mine)} calibrations. "
            f"The least sure is {least['calibration']}: "
            f"{least['value']:.2f} [{least['ci_low']:.2f}, {least['ci_high']:.2f}] from {least['n_samples']} samples"
            f"{', too few to say' if least['ci_high'] - least['ci_low'] > 0.5 else ''}"
        )
        if least["value"] < SUFFICIENT_RELIABILITY:
            fewest, most = (
                samples_for(SUFFICIENT_RELIABILITY, least[end], least["n_samples"])
                for end in ("ci_high", "ci_low")
            )
            if not isfinite(fewest):
                sentence += "; nothing says how many would do"
            elif not isfinite(most):
                sentence += f"; {_rounded(fewest)} or more would do"
            else:
                sentence += f"; some {_rounded(fewest)} to {_rounded(most)} would do"
        if least["other"] and least["other_value"] > least["value"]:
            agreement = _signed(least["other_spearman"])
            if least["other_low"] is not None:
                agreement += f" [{_signed(least['other_low'])}, {_signed(least['other_high'])}]"
            sentence += (
                f", where {least['other']} has {least['other_value']:.2f} from the same samples and orders the layers "
                f"of this task much as accuracy does (rank correlation {agreement})"
            )
        sentences.append(f"{sentence}.")
    return sentences


def _rounded(count: float) -> str:
    """A number with two digits that count."""
    return f"{float(f'{count:.2g}'):,.0f}"


def contests(
    connection: duckdb.DuckDBPyConnection, take: Sequence[Mapping[str, Any]]
) -> list[Told]:
    """Each recommended recipe's selector against the others with the same repair, and selector accuracy (or the first
    one) against the others without repair; over own tasks and sizes."""
    pairs = answer(connection, "which_selector_wins")
    recipes = [row for row in take if row["question"] == "recipe"] or [
        row for row in take if row["kept_enough"]
    ][:1]
    asked = dict.fromkeys((row["selector"], row["repair"], row["healing"]) for row in recipes)
    names = sorted({row["selector"] for row in pairs}, key=lambda name: (name != "accuracy", name))
    asked |= dict.fromkeys((name, "none", "none") for name in names[:1])
    found = answer(connection, "what_searching_found")
    mended = {row["selector"] for row in found if row["repair"] not in (None, "none")}
    return [told for champion in asked for told in contest(pairs, mended, *champion)]


def contest(
    pairs: Rows, mended: Collection[str], champion: str, repair: str, healing: str
) -> list[Told]:
    """A selector against every other one with the same repair; empty if it was not compared.

    mended: selectors that chose plans with a repair in place.
    """
    met: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for row in pairs:
        if (row["repair"], row["healing"]) == (repair, healing) and champion in (
            row["selector"],
            row["rival"],
        ):
            other, sign = (
                (row["rival"], 1) if row["selector"] == champion else (row["selector"], -1)
            )
            met.setdefault(other, []).append((sign, row))
    table = []
    for other, rows in sorted(met.items()):
        won, lost = (
            sum(row["better" if sign == way else "worse"] for sign, row in rows) for way in (1, -1)
        )
        tasks = sum(row["n_accuracies"] for _, row in rows)
        points = sum(
            100 * sign * (row["mean_accuracy"] or 0) * row["n_accuracies"] for sign, row in rows
        )
        name = other + " (chose for a repair)" * (repair == "none" and other in mended)
        counts = {
            "against": name,
            "better": won,
            "worse": lost,
            "undecided": sum(row["undecided"] for _, row in rows),
        }
        table.append(
            counts | {"points of accuracy, mean": _signed(points / tasks, "+.1f") if tasks else "–"}
        )
    how = (
        "Without repair"
        if repair == healing == "none"
        else f"With repair {format_repair(repair, healing)}"
    )
    by = "on the same tasks and sizes, by paired tests at 5 %, corrected for their number."
    return [f"{how}, selector {champion} against the others {by}", table] if table else []


def repairs(changes: Rows) -> list[Told]:
    """How often each kind of repair helped and hurt on the calibrations' own tasks, and on texts that it was not fitted
    on.
    """
    table = []
    for way, rows in _ways([row for row in changes if row["gain"] is not None]):
        if mine := [row for row in rows if row["own"] and row["metric"] != "perplexity"]:
            gain, loss = (100 * fmean(row[kind] for row in mine) for kind in ("gain", "loss"))
            mean = f"{_signed(gain, '+.1f')} points of {_signed(loss, '.1f')} lost"
            table.append(
                {"repair": way, "measured on": "own tasks"} | _counted(mine) | {"given back": mean}
            )
        texts = [row for row in rows if not row["own"] or row["metric"] == "perplexity"]
        for (task,), tested in sorted(grouped(texts, "task").items()):
            bare, mended, worst = (
                f"{of([row[key] for row in tested]):.1f}"
                for of, key in ((median, "pruned_value"), (median, "value"), (max, "value"))
            )
            seen = f"perplexity {bare} → {mended}, at worst {worst} (base {tested[0]['base_value']:.2f})"
            table.append(
                {"repair": way, "measured on": task} | _counted(tested) | {"given back": seen}
            )
    return (
        ["What they gave back: means of points of accuracy, medians of perplexities.", table]
        if table
        else []
    )


def _counted(changes: Rows) -> dict[str, int]:
    """How many gains lie above 0 with all their 95 % interval, and how many below."""
    reached = [
        (row["gain"], Z95 * row["gain_stderr"]) for row in changes if row["gain_stderr"] is not None
    ]
    better, worse = (
        sum(gain > reach for gain, reach in reached),
        sum(gain < -reach for gain, reach in reached),
    )
    return {"variants": len(changes), "surely helped": better, "surely hurt": worse}


def _ways(changes: Rows) -> list[tuple[str, Rows]]:
    """The rows of each repair under its name: repairs first, then healings, then both."""
    groups = grouped(changes, "repair", "healing")
    return [(format_repair(*way), groups[way]) for way in style.list_repairs(changes)]


def written(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many right choices are left, and how many right answers to the same questions if the model writes them."""
    shares = [
        f"{ways} {100 * fmean(row['choice_kept'] for row in mine):.0f} % and "
        f"{100 * fmean(row['written_kept'] for row in mine):.0f} % (n = {len(mine)} variants)"
        for ways, mine in _ways(answer(connection, "what_is_left_of_choosing_and_writing"))
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
    drawn = [row for row in _layers(connection) if row["accuracy_spread"] is not None]
    kept = answer(connection, "how_far_variants_vary_between_draws")
    sentences = []
    for (model, calibration), layers in sorted(grouped(drawn, "model", "calibration").items()):
        widest = max(layers, key=lambda row: row["accuracy_spread"])
        sentences.append(
            f"{calibration}, drawn {max(row['n_draws'] for row in layers)} times: the accuracy relevance of a layer of "
            f"{model} has a standard deviation of {median(row['accuracy_spread'] for row in layers):.3f} from draw to "
            f"draw in the median of {len(layers)} layers, and of {widest['accuracy_spread']:.3f} at most (layer "
            f"{widest['layer']})."
        )
    return sentences + [
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
    named = ", ".join(
        f"{row['unit']} on {row['calibration']} ({row['most']} samples)" for row in units[:5]
    )
    more = f" and {len(units) - 5} more" if len(units) > 5 else ""
    return f"Without these units the outputs were not finite on some samples, which count as wrong: {named}{more}."


def cut_questions(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many questions are longer than the context of their model."""
    return [
        f"{row['cut']} of {row['questions']} questions of {row['source']} are longer than the context of "
        f"{row['model']}: their oldest tokens are left out, as lm-eval does."
        for row in answer(connection, "which_questions_were_cut")
    ]


def undecided_questions(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many questions have a right choice whose tokens are those of a wrong one."""
    treatment = {
        "calibration": "they are left out",
        "benchmark": "the first of equal choices counts, as in lm-eval",
    }
    return [
        f"{row['undecided']} of {row['questions']} questions of {row['source']} ({row['use']}) have a right choice "
        f"with the tokens of a wrong one for {row['model']}, so that no score decides them: {treatment[row['use']]}."
        for row in answer(connection, "which_questions_no_score_decides")
    ]


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
        "Passages of 13 words that calibrations share with test documents, in "
        f"{len(pairs)} pair{'s' * (len(pairs) > 1)} of them: {shared or 'nothing is shared'}."
    ]

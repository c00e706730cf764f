"""What a reader should know before trusting the results: the topic "Cautions" of the report.

Each function returns its sentences, or none if there is nothing to say.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import isfinite
from statistics import median, stdev
from typing import Any

import duckdb

from lamina.relevance.statistics import Z95
from lamina.relevance.true_scores import SUFFICIENT_RELIABILITY, samples_for
from lamina.variant import describe_size
from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures.style import format_repair
from lamina_workflow.report.formatting import format_signed

MAX_EXAMPLES = 4  # variants that a sentence lists
MAX_UNITS = 5  # units that a sentence lists
LIKELIER = 0.9  # share of the base model's loss; a smaller drop may be chance
WIDE_INTERVAL = 0.5  # width from which the interval of a reliability says little


def list_harmful_repairs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Repairs that significantly hurt their variant, on its own task or held-out documents."""
    harmed_variants = []
    for row in answer_question(connection, "what_repair_gave_back"):
        if row["own"] and row["gain"] is not None and row["certain"] and row["gain"] < 0:
            harmed_variants.append(
                f"{format_repair(row['repair'], row['healing'])} with {_name_removal(row)} "
                f"({row['pruned_value']:.3g} to {row['value']:.3g} {row['metric']})"
            )
    harmed_heldout = [
        f"{row['repair']} with {_name_removal(row)} ({row['loss_bare']:.3g} to "
        f"{row['loss_repaired']:.3g} nats per token, n = {row['n_loss']})"
        for row in answer_question(connection, "which_repairs_hurt")
    ]

    sentences = []
    if harmed_variants:
        sentences.append(f"Repairs that hurt: {_list_first(harmed_variants)}.")
    if harmed_heldout:
        sentences.append(
            "Repairs that hurt on held-out documents of their calibration, so that they are not "
            f"recommended: {_list_first(harmed_heldout)}."
        )
    return sentences


def _name_removal(row: Mapping[str, Any]) -> str:
    return f"{describe_size(row['removed'])} by {row['selector']} on {row['calibration']}"


def list_worse_smaller_removals(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Variants that keep significantly less than one of the same recipe with more units removed."""
    variants = [
        row
        for row in answer_question(connection, "which_variants_there_are")
        if row["own_kept_stderr"] is not None
    ]
    recipes = group_rows(variants, "model", "calibration", "selector", "repair", "healing")
    examples = []
    for recipe_rows in recipes.values():
        for pair in combinations(recipe_rows, 2):
            smaller, larger = sorted(pair, key=lambda row: row["removed"])
            if smaller["removed"] > 0 and _keeps_less(smaller, larger):
                examples.append(
                    f"{smaller['selector']} on {smaller['calibration']}, "
                    f"{format_repair(smaller['repair'], smaller['healing'])}: "
                    f"{100 * smaller['own_kept']:.0f} % kept with {smaller['removed']} removed, "
                    f"{100 * larger['own_kept']:.0f} % with {larger['removed']}"
                )
    if not examples:
        return []
    return [f"Removing fewer units was worse than removing more: {_list_first(examples)}."]


def _keeps_less(variant: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the 95 % interval of the difference, of independent shares, lies below 0."""
    stderr = (variant["own_kept_stderr"] ** 2 + other["own_kept_stderr"] ** 2) ** 0.5
    return bool(other["own_kept"] - variant["own_kept"] > Z95 * stderr)


def list_likelier_documents(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Plans chosen on judge documents that became likelier than under the base model."""
    examples = [
        f"{_name_removal(row)} (loss {row['loss_base']:.3g} to {row['loss']:.3g}, "
        f"n = {row['n_samples']})"
        for row in answer_question(connection, "what_searching_found")
        if row["loss_base"] and row["loss"] < LIKELIER * row["loss_base"] and row["removed"] > 0
    ]
    if not examples:
        return []
    return [
        f"Smaller models have a lower loss than the base model on judge documents: "
        f"{_list_first(examples)}. The base model does not write like these documents, so a lower "
        "loss need not mean a better model. If answers are to be written, also list a selector "
        "with strategy: block, and test written answers."
    ]


def list_ineffective_healings(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Trainings that lowered the validation loss by less than the error of a mean loss.

    That is the error of the mean over the losses of their steps.
    """
    keys = ("selector", "calibration", "model", "removed", "repair", "healing")
    examples = []
    for training_rows in group_rows(
        answer_question(connection, "how_healing_went"), *keys
    ).values():
        step_losses = [row["loss"] for row in training_rows if row["loss"] is not None]
        validation_rows = [row for row in training_rows if row["validation_loss"] is not None]
        kept_losses = [row["validation_loss"] for row in validation_rows if row["chosen"]]
        if len(step_losses) < 2 or validation_rows[0]["step"] or not kept_losses:
            continue
        first_loss = validation_rows[0]["validation_loss"]
        last_loss = kept_losses[-1]
        half_width = Z95 * stdev(step_losses) / len(step_losses) ** 0.5
        if first_loss - last_loss < half_width:
            first_row = training_rows[0]
            peak_step = max(training_rows, key=lambda row: row["learning_rate"] or 0)["step"]
            examples.append(
                f"{format_repair(first_row['repair'], first_row['healing'])} with "
                f"{_name_removal(first_row)}: {first_loss:.3f} to {last_loss:.3f} in "
                f"{len(step_losses)} steps, {peak_step} of them warm-up"
            )
    if not examples:
        return []
    return [f"Healings without a significant drop of the validation loss: {_list_first(examples)}."]


def _list_first(examples: Sequence[str]) -> str:
    listed = "; ".join(examples[:MAX_EXAMPLES])
    n_more = len(examples) - MAX_EXAMPLES
    return f"{listed}; and {n_more} more" if n_more > 0 else listed


def describe_reliability(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """On how many calibrations the ranking of layers by accuracy is reliable.

    For the least reliable ranking: how many samples would be enough, and a metric that orders the
    layers similarly and more reliably.
    """
    reliabilities = answer_question(
        connection, "how_sure_rankings_are", wanted=SUFFICIENT_RELIABILITY
    )
    sentences = []
    for (model,), model_rows in group_rows(reliabilities, "model").items():
        n_reliable = sum(row["value"] >= SUFFICIENT_RELIABILITY for row in model_rows)
        least_reliable = model_rows[0]  # the answer lists it first
        sentence = (
            f"{model}: the ranking of layers by accuracy is reliable (Spearman's correlation with "
            f"a ranking by other samples is at least {SUFFICIENT_RELIABILITY:.2f}) on {n_reliable} "
            f"of {len(model_rows)} calibrations. The least reliable is "
            f"{least_reliable['calibration']}: {least_reliable['value']:.2f} "
            f"[{least_reliable['ci_low']:.2f}, {least_reliable['ci_high']:.2f}] from "
            f"{least_reliable['n_samples']} samples"
        )
        if least_reliable["ci_high"] - least_reliable["ci_low"] > WIDE_INTERVAL:
            sentence += ", too few for a precise estimate"
        if least_reliable["value"] < SUFFICIENT_RELIABILITY:
            sentence += f"; {_describe_sufficient_samples(least_reliable)}"
        if least_reliable["other"] and least_reliable["other_value"] > least_reliable["value"]:
            sentence += f". {_describe_better_metric(least_reliable)}"
        sentences.append(f"{sentence}.")
    return sentences


def _describe_sufficient_samples(row: Mapping[str, Any]) -> str:
    fewest_samples = samples_for(SUFFICIENT_RELIABILITY, row["ci_high"], row["n_samples"])
    most_samples = samples_for(SUFFICIENT_RELIABILITY, row["ci_low"], row["n_samples"])
    if not isfinite(fewest_samples):
        return "the number that would be enough is unknown"
    if not isfinite(most_samples):
        return f"{_round_to_two_digits(fewest_samples)} or more would be enough"
    fewest = _round_to_two_digits(fewest_samples)
    return f"{fewest} to {_round_to_two_digits(most_samples)} would be enough"


def _describe_better_metric(row: Mapping[str, Any]) -> str:
    agreement = format_signed(row["other_spearman"])
    if row["other_low"] is not None:
        low = format_signed(row["other_low"])
        high = format_signed(row["other_high"])
        agreement += f" [{low}, {high}]"
    return (
        f"On the same samples, {row['other']} has {row['other_value']:.2f} and orders the layers "
        f"similarly to accuracy (rank correlation {agreement})"
    )


def _round_to_two_digits(count: float) -> str:
    """A number with two significant digits."""
    return f"{float(f'{count:.2g}'):,.0f}"


def describe_spread_of_draws(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How much relevance and scores depend on the random draw of samples or the seed."""
    layer_rows = [
        row
        for row in answer_question(connection, "which_layers_matter")
        if row["component"] == "layer" and row["accuracy_spread"] is not None
    ]
    sentences = []
    for (model, calibration), layer_spreads in sorted(
        group_rows(layer_rows, "model", "calibration").items()
    ):
        n_draws = max(row["n_draws"] for row in layer_spreads)
        median_spread = median(row["accuracy_spread"] for row in layer_spreads)
        widest_spread = max(layer_spreads, key=lambda row: row["accuracy_spread"])
        sentences.append(
            f"{calibration}, drawn {n_draws} times: between draws, the accuracy relevance of a "
            f"layer of {model} has a standard deviation of {median_spread:.3f} (median of "
            f"{len(layer_spreads)} layers), at most {widest_spread['accuracy_spread']:.3f} "
            f"(layer {widest_spread['layer']})."
        )
    for row in answer_question(connection, "how_far_variants_vary_between_draws"):
        sentences.append(
            f"{row['selector']} on {row['calibration']}, drawn {row['n_draws']} times: between "
            f"draws, the share that a variant of {row['model']} keeps of its own task has a "
            f"standard deviation of {row['spread']:.1f} points (median of {row['n']} variants), at "
            f"most {row['most']:.1f}."
        )
    return sentences


def list_nonfinite_units(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Units whose removal gave outputs that are not finite, which count as wrong answers."""
    units = answer_question(connection, "where_outputs_were_not_finite")
    if not units:
        return []
    listed = ", ".join(
        f"{row['unit']} on {row['calibration']} ({row['most']} samples)"
        for row in units[:MAX_UNITS]
    )
    n_more = len(units) - MAX_UNITS
    if n_more > 0:
        listed += f" and {n_more} more"
    return [
        "Without these units, outputs were not finite on some samples, which count as wrong: "
        f"{listed}."
    ]


def describe_shared_documents(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many documents of calibrations share passages with test documents.

    No documents are equal: `check_overlap` refuses them.
    """
    document_pairs = answer_question(connection, "what_calibrations_share_with_tests")
    if not document_pairs:
        return []
    shared_passages = [
        f"{pair['sharing']} of the {pair['documents']} documents of {pair['calibration']} with "
        f"the {pair['tested']} of {pair['task']} ({pair['near']} near duplicates)"
        for pair in document_pairs
        if pair["sharing"]
    ]
    pair_word = "pairs" if len(document_pairs) > 1 else "pair"
    return [
        "Calibration documents that share a passage of 13 words with test documents, in "
        f"{len(document_pairs)} {pair_word} of calibration and task: "
        f"{'; '.join(shared_passages) or 'none'}."
    ]


def count_truncated_questions(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many questions are longer than the context of their model."""
    return [
        f"{row['cut']} of {row['questions']} questions of {row['source']} are longer than the "
        f"context of {row['model']}: they are truncated on the left, as in lm-eval."
        for row in answer_question(connection, "which_questions_were_cut")
    ]


def count_undecided_questions(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """How many questions have a right choice with the same tokens as a wrong one."""
    treatment = {
        "calibration": "they are left out",
        "benchmark": "the first of equal choices counts, as in lm-eval",
    }
    return [
        f"{row['undecided']} of {row['questions']} questions of {row['source']} ({row['use']}) "
        f"have a right choice with the same tokens as a wrong one for {row['model']}, so no score "
        f"can decide them: {treatment[row['use']]}."
        for row in answer_question(connection, "which_questions_no_score_decides")
    ]

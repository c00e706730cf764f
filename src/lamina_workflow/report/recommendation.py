"""The cards of the page: a verdict on each recommended variant, its sizes, and where it loads.

The numbers of a card come from the question `which_model_to_take` and view `variant_sizes`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import duckdb

from lamina.models.export.runtimes import ExportTraits, list_runtimes
from lamina.models.units import list_steps, list_visits
from lamina.variant import Variant
from lamina_workflow.report.answers import query_rows, recommendations
from lamina_workflow.report.formatting import format_bytes, format_speed_ratio

MOST_QUESTIONS = 50  # times the existing number; asking for more is no useful advice
RUNTIME_NAMES = {"transformers": "transformers", "vllm": "vLLM", "llama.cpp": "llama.cpp"}

# Where a variant loads depends on its units and the layers of its model. Only smaller models are
# recommended, not those of plans that merely move layers.
_TRAITS = """
SELECT v.model, v.calibration, v.selector, v.removed, v.repair, v.healing, v.units,
    m.decoder, m.runs_code_in_vllm, l.kinds
FROM variants AS v JOIN models AS m USING (model)
JOIN (SELECT model, list(kind ORDER BY layer) AS kinds FROM layer_sizes GROUP BY ALL) AS l
    USING (model)
WHERE v.removed > 0
"""


@dataclass(frozen=True)
class Verdict:
    """Whether the test documents show that a variant keeps the required share."""

    text: str
    is_significant: bool
    """Whether the documents show that it keeps the share."""


def judge(row: Mapping[str, Any], keep: float, general_text: float | None) -> Verdict:
    """The verdict on a row of `which_model_to_take`."""
    noun = "questions" if row["kept_step"] else "documents"  # documents are not right or wrong
    tested = f"{row['n_samples']:,.0f} test {noun}"
    asked = f"{100 * keep:g} %"
    n_needed = row["n_needed"]
    is_decided = n_needed is not None and n_needed <= row["n_samples"]
    if row["failed_gates"]:
        return Verdict(f"It fails the gate of its study on {row['failed_gates']}.", False)
    if row["kept_enough"] and row["untold_gates"]:
        return Verdict(
            "Its test documents cannot decide whether it passes the gate of its study on "
            f"{row['untold_gates']}.",
            False,
        )
    if row["kept_enough"] and row["certain"]:
        return Verdict(f"{tested} show that it keeps at least {asked}.", True)
    if not row["kept_enough"] and row["share"] is not None and row["share"] >= keep:
        return Verdict(
            f"It keeps {asked} of the task, but its perplexity of general text is "
            f"{row['text_ratio']:.2f} times the base model's, and at most {general_text:g} is "
            "allowed.",
            False,
        )
    if not row["kept_enough"] and is_decided:
        return Verdict(f"{tested} show that it keeps less than {asked}.", False)
    return Verdict(
        f"{tested} cannot decide whether it keeps {asked}; "
        f"{advise_questions(row['n_samples'], n_needed)}.",
        False,
    )


def advise_questions(n_asked: float, n_needed: float | None) -> str:
    """How many questions would decide what `n_asked` cannot; `n_needed` is None if unknown."""
    if n_needed is None:
        return "more are needed"
    if n_needed > MOST_QUESTIONS * n_asked:
        return "it is too close to call"
    return f"about {float(f'{n_needed:.2g}'):,.0f} would"


def find_runtimes(
    connection: duckdb.DuckDBPyConnection, stock_repairs: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """The programs that load each variant's export, by the variant's name.

    stock_repairs: `none`, and the repairs that leave no patch in the model
    """
    runtimes = {}
    for row in query_rows(connection, _TRAITS):
        edits = (row["units"] or "").split()
        kinds = row["kinds"]
        visits = list_visits(list_steps(edits, len(kinds)))
        visited_kinds = [kinds[visit.layer] for visit in visits]
        traits = ExportTraits(
            decoder=row["decoder"] or "",
            has_code=_has_code(row, stock_repairs),
            shifts_kinds=visited_kinds != kinds[: len(visits)],
            lacks_attention=any("attention" in visit.without for visit in visits),
            runs_code_in_vllm=bool(row["runs_code_in_vllm"]),
        )
        runtimes[str(Variant.of(row))] = list_runtimes(traits)
    return runtimes


def list_loadable(
    runtimes_by_variant: Mapping[str, Collection[str]], wanted: Collection[str]
) -> list[str]:
    """The names of the variants that load in all requested programs."""
    return [name for name, found in runtimes_by_variant.items() if set(wanted) <= set(found)]


def _has_code(row: Mapping[str, Any], stock_repairs: Collection[str]) -> bool:
    """Whether an export has its own code: for a patch, or for layers that run again with damping."""
    return row["repair"] not in stock_repairs or "~" in (row["units"] or "")


def describe_loading(runtimes: Collection[str], has_code: bool) -> str:
    """Where an export loads, in words."""
    names = [RUNTIME_NAMES[name] for name in RUNTIME_NAMES if name in runtimes]
    if has_code:
        others = ", vLLM" if "vllm" in runtimes else ""
        return (
            f"with its own code: transformers with trust_remote_code, lamina.load{others}; "
            "not in llama.cpp"
        )
    if len(names) == len(RUNTIME_NAMES):
        return f"wherever the base model does: {', '.join(names)}"
    missing = [name for name in RUNTIME_NAMES.values() if name not in names]
    return (
        f"{' and '.join(names)}; not in {' or '.join(missing)}, where a layer's index determines "
        "its kind (window, positions, experts), and this cut shifts the kinds"
    )


def read_handles(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The handle of each variant, by its name."""
    return {str(Variant.of(row)): row["handle"] for row in query_rows(connection, "FROM handles")}


class Recommender:
    """Finds the variants that keep the required share, and fills their cards.

    stock_repairs: `none`, and the repairs that leave no patch in the model
    keep, general_text, counted_from: as for `lamina_workflow.report.answers.recommendations`
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        stock_repairs: Collection[str],
        keep: float,
        general_text: float | None,
        counted_from: str,
    ) -> None:
        self.connection = connection
        self.stock_repairs = stock_repairs
        self.keep = keep
        self.general_text = general_text
        self.counted_from = counted_from
        self.runtimes = find_runtimes(connection, stock_repairs)
        # Only of smaller models, since only these may be recommended.
        size_rows = query_rows(connection, "FROM variant_sizes WHERE removed > 0")
        self.sizes = {str(Variant.of(row)): row for row in size_rows}
        self.handles = read_handles(connection)

    def recommend(self, runtimes: Collection[str] = ()) -> list[dict[str, Any]]:
        """The answers among variants that load in all of these programs, as shown on cards."""
        allowed = None
        if runtimes:
            allowed = list_loadable(self.runtimes, runtimes)
        rows = recommendations(
            self.connection, self.keep, self.general_text, self.counted_from, allowed
        )
        return [self._complete(row) for row in rows]

    def _complete(self, row: Mapping[str, Any]) -> dict[str, Any]:
        variants = row["variants"]
        known_runtimes = [set(self.runtimes[name]) for name in variants if name in self.runtimes]
        sizes = [self.sizes[name] for name in variants if name in self.sizes]
        loading = ""
        if known_runtimes:
            has_code = _has_code(row, self.stock_repairs)
            loading = describe_loading(set.intersection(*known_runtimes), has_code)
        return {
            **row,
            "verdict": judge(row, self.keep, self.general_text),
            "size": _describe_size(sizes) if sizes else "",
            "speed": _describe_speed(sizes) if sizes else "",
            "loading": loading,
            "handles": {name: self.handles.get(name, name) for name in variants},
        }


def _describe_size(sizes: Sequence[Mapping[str, Any]]) -> str:
    """`2.4 → 1.9 MB, 602,432 → 472,960 parameters`; for several variants their mean."""
    base = sizes[0]
    weights_bytes = fmean(row["weights_bytes"] for row in sizes)
    parameters = fmean(row["parameters"] for row in sizes)
    return (
        f"{format_bytes(base['base_weights_bytes'])} → {format_bytes(weights_bytes)}, "
        f"{base['base_parameters']:,} → {parameters:,.0f} parameters "
        f"({100 * parameters / base['base_parameters']:.1f} %)"
    )


def _describe_speed(sizes: Sequence[Mapping[str, Any]]) -> str:
    """Tokens per second compared with the base model: measured, or else estimated.

    Errors of several variants are added as if they were one, since most share a timing.
    """
    if any(row["tokens_per_second"] is None for row in sizes):
        ratio = fmean(row["estimated_speed_ratio"] for row in sizes)
        return f"× {ratio:.2f} tokens per second, estimated from the weights read per token"
    repeats = min(row["speed_repeats"] for row in sizes)
    ratio_words = format_speed_ratio(
        fmean(row["tokens_per_second_ratio"] for row in sizes),
        fmean(row["tokens_per_second_ratio_stderr"] for row in sizes),
        repeats,
    )
    speed = fmean(row["tokens_per_second"] for row in sizes)
    base_speed = fmean(row["tokens_per_second"] / row["tokens_per_second_ratio"] for row in sizes)
    return (
        f"{base_speed:,.0f} → {speed:,.0f} tokens per second, {ratio_words} "
        f"(n = {repeats} repetitions)"
    )

"""Which numbers of two results folders differ by more than their error.

`python -m lamina_workflow.report.compare A B --output results/compare` prints them and writes
OUTPUT.csv, OUTPUT.svg and OUTPUT.html.

Benchmarks of the same documents are compared document by document: a, b and their difference are
means over documents. For a loss per token these means differ from the values in table `benchmarks`.
All other numbers are compared by their intervals as if they were independent; this is on the safe
side if they share samples. Speeds are compared by their logarithms, with one test for each distinct
timing. p values are corrected for the number of comparisons of their table by Holm's method, and
for the number of tables. So if nothing has moved, the chance that any number is said to have moved
is less than 1 in 20.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import duckdb

from lamina.errors import LaminaError, report_errors
from lamina.store import parquet
from lamina_workflow.report.answers import as_csv, query_rows
from lamina_workflow.report.comparison_page import draw_comparisons, render_comparisons
from lamina_workflow.report.database import quote_relation
from lamina_workflow.report.figures import style
from lamina_workflow.report.independent_tests import MeasuredNumber, compare_independent
from lamina_workflow.report.paired_tests import DifferenceTest, compute_paired_test, correct_by_holm

LEVEL = 0.05
VARIANT = ("model", "calibration", "selector", "removed", "repair", "healing")
_VARIANT_NAME = (
    "concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing{})"
)
# Numbers of a timing are those of one prompt and batch.
_LOAD = ", 'prompt=' || prompt, 'batch=' || batch"

# The numbers of each table, with the fields of MeasuredNumber as columns.
NUMBERS = {
    "benchmarks": f"""
        SELECT {_VARIANT_NAME.format(", task")} AS number, metric, value, stderr, n_samples,
            higher_is_better, task_version || ' ' || n_shot AS test_version
        FROM benchmarks AS m
        -- a text's perplexity is exp of its nll, which is compared document by document
        WHERE metric <> 'nll_per_log_vocabulary' AND NOT (metric = 'perplexity' AND EXISTS (
            FROM benchmarks AS o
            WHERE o.model = m.model AND o.task = m.task AND o.metric = 'nll'))""",
    "relevance": """
        SELECT concat_ws('/', model, calibration, component, unit) AS number, metric,
            score AS value, ci_low, ci_high, n_samples, NULL AS higher_is_better
        FROM relevance WHERE selector = 'base' AND removed = 0 AND score IS NOT NULL""",
    "efficiency": f"""
        SELECT {_VARIANT_NAME.format(_LOAD)} AS number,
            unnest(['latency_ratio', 'tokens_per_second_ratio']) AS metric,
            unnest([latency_ratio, tokens_per_second_ratio]) AS value,
            unnest([latency_ratio_stderr, tokens_per_second_ratio_stderr]) AS stderr,
            repeats AS n_samples, unnest([false, true]) AS higher_is_better
        FROM (
            SELECT *, {_VARIANT_NAME.format("")} AS own FROM efficiency WHERE selector <> 'none'
            QUALIFY row_number() OVER (
                PARTITION BY coalesce(timed, own), prompt, batch ORDER BY timed <> own, own) = 1)""",
}
DOCUMENT_DIFFERENCES = f"""
    SELECT {_VARIANT_NAME.format(", task")} AS number, metric, task,
        list(b.value - a.value) AS differences, avg(a.value) AS a, avg(b.value) AS b
    FROM {{}} AS a JOIN {{}} AS b USING ({", ".join(VARIANT)}, task, metric, sample)
    WHERE isfinite(a.value) AND isfinite(b.value) GROUP BY ALL"""


class NumberComparison(TypedDict):
    """One number of both folders: a row of OUTPUT.csv."""

    table: str
    number: str
    metric: str
    a: float
    b: float
    difference: float  # b - a
    ci_low: float
    ci_high: float
    p_value: float
    p_holm: float  # corrected for the number of comparisons
    moved: bool
    better: bool | None  # None if it did not move, or if neither direction is better
    paired: bool
    n_samples: int


def compare_folders(a: str | Path, b: str | Path) -> list[NumberComparison]:
    """One comparison for each number that both folders hold with an error, moved ones first.

    Raises LaminaError if a folder holds no tables, or if the folders have no number in common.
    """
    first_tables = _find_tables(Path(a))
    second_tables = _find_tables(Path(b))
    comparisons: list[NumberComparison] = []
    n_tables = 0
    for table in NUMBERS:
        table_comparisons = _compare_tables(table, first_tables, second_tables)
        n_tables += bool(table_comparisons)
        comparisons += table_comparisons
    if not comparisons:
        raise LaminaError(
            f"{a} and {b} hold no number in common. Compare two runs that share variants."
        )
    for comparison in comparisons:
        comparison["p_holm"] = min(1.0, n_tables * comparison["p_holm"])
        comparison["moved"] = comparison["p_holm"] < LEVEL
        if not comparison["moved"]:
            comparison["better"] = None
    comparisons.sort(key=_sort_key)
    return comparisons


def _sort_key(row: NumberComparison) -> tuple[bool, float, float, str, str, str]:
    """Moved numbers first, then the smallest p values; ties by name."""
    return (
        not row["moved"],
        row["p_holm"],
        row["p_value"],
        row["table"],
        row["number"],
        row["metric"],
    )


def _find_tables(folder: Path) -> Path:
    tables_folder = folder / "tables" if (folder / "tables").is_dir() else folder
    has_benchmarks = (tables_folder / "benchmarks.parquet").is_file()
    has_relevance = (tables_folder / "relevance.parquet").is_file()
    if not has_benchmarks and not has_relevance:
        raise LaminaError(
            f"{folder} holds no tables/*.parquet. Name two results folders: lamina compare results "
            "other/results"
        )
    return tables_folder


def _compare_tables(table: str, first_tables: Path, second_tables: Path) -> list[NumberComparison]:
    """The comparisons of one table, with p values corrected for their number."""
    first_numbers = _read_numbers(first_tables, table)
    second_numbers = _read_numbers(second_tables, table)
    documents: dict[tuple[str, str], dict[str, Any]] = {}
    if table == "benchmarks":
        documents = _read_document_differences(first_tables, second_tables)

    comparisons = []
    for key, first in first_numbers.items():
        if key not in second_numbers:
            continue
        comparison = _compare_numbers(table, first, second_numbers[key], documents.get(key))
        if comparison:
            comparisons.append(comparison)

    p_values = [comparison["p_value"] for comparison in comparisons]
    for comparison, p_holm in zip(comparisons, correct_by_holm(p_values), strict=True):
        comparison["p_holm"] = p_holm
    return comparisons


def _read_numbers(tables: Path, table: str) -> dict[tuple[str, str], MeasuredNumber]:
    file = tables / f"{table}.parquet"
    if not file.is_file():
        return {}
    parquet.read_metadata(file)  # refuses a damaged file, which DuckDB would read
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW {table} AS FROM {quote_relation(file)}")
        numbers = [MeasuredNumber(**row) for row in query_rows(connection, NUMBERS[table])]
    return {(number.number, number.metric): number for number in numbers}


def _read_document_differences(
    first_tables: Path, second_tables: Path
) -> dict[tuple[str, str], dict[str, Any]]:
    """b - a of every document and the means of a and b, by number and metric.

    Only for tasks that both runs tested on the same documents.
    """
    first_file = first_tables / "benchmark_samples.parquet"
    second_file = second_tables / "benchmark_samples.parquet"
    if not first_file.is_file() or not second_file.is_file():
        return {}
    for file in (first_file, second_file):
        parquet.read_metadata(file)
    query = DOCUMENT_DIFFERENCES.format(quote_relation(first_file), quote_relation(second_file))
    with duckdb.connect() as connection:
        differences = query_rows(connection, query)
    tasks = {row["task"] for row in differences}
    shared_tasks = {
        task for task in tasks if _have_same_documents(first_tables, second_tables, task)
    }
    return {
        (row["number"], row["metric"]): row for row in differences if row["task"] in shared_tasks
    }


def _have_same_documents(first_tables: Path, second_tables: Path, task: str) -> bool:
    """Whether the hashes of a task's documents are equal.

    A folder may hold only tables; then documents are compared by their numbers.
    """
    first_file = first_tables.parent / "tasks" / f"{task}.parquet"
    second_file = second_tables.parent / "tasks" / f"{task}.parquet"
    if not first_file.is_file() or not second_file.is_file():
        return True
    return parquet.read_table(first_file).equals(parquet.read_table(second_file))


def _compare_numbers(
    table: str,
    first: MeasuredNumber,
    second: MeasuredNumber,
    documents: Mapping[str, Any] | None,
) -> NumberComparison | None:
    """Compare two numbers, before any correction of p; None if an error is unknown.

    documents: their differences, if both numbers were measured on the same documents
    """
    test: DifferenceTest | None
    if documents and _are_all_documents(documents["differences"], first, second):
        paired = True
        a = documents["a"]
        b = documents["b"]
        n_samples = len(documents["differences"])
        test = compute_paired_test([documents["differences"]])
    else:
        paired = False
        a = first.value
        b = second.value
        n_samples = min(first.n_samples, second.n_samples)
        test = compare_independent(first, second, are_time_ratios=table == "efficiency")
    if test is None:
        return None

    better = None
    if first.higher_is_better is not None:
        better = (test["difference"] > 0) == first.higher_is_better
    return NumberComparison(
        table=table,
        number=first.number,
        metric=first.metric,
        a=a,
        b=b,
        difference=test["difference"],
        ci_low=test["ci_low"],
        ci_high=test["ci_high"],
        p_value=test["p_value"],
        p_holm=test["p_value"],
        moved=False,
        better=better,
        paired=paired,
        n_samples=n_samples,
    )


def _are_all_documents(
    differences: Sequence[float], first: MeasuredNumber, second: MeasuredNumber
) -> bool:
    """Whether both numbers were measured on these documents with the same prompts."""
    return (
        len(differences) == first.n_samples == second.n_samples
        and first.test_version == second.test_version
    )


def summarise_comparisons(comparisons: Sequence[NumberComparison]) -> Iterator[str]:
    """How many numbers were compared and how many moved, table by table."""
    if all(row["a"] == row["b"] for row in comparisons):
        yield f"A and B hold the same {len(comparisons)} numbers, so nothing could move"
    for table in NUMBERS:
        table_rows = [row for row in comparisons if row["table"] == table]
        if not table_rows:
            continue
        moved_rows = [row for row in table_rows if row["moved"]]
        n_better = sum(row["better"] is True for row in moved_rows)
        n_worse = sum(row["better"] is False for row in moved_rows)
        n_paired = sum(row["paired"] for row in table_rows)
        directions = ""
        if n_better or n_worse:
            directions = f" ({n_better} better, {n_worse} worse)"
        yield (
            f"{table}: {len(moved_rows)} of {len(table_rows)} numbers moved{directions}; "
            f"{n_paired} were compared document by document"
        )


def format_comparison(row: NumberComparison) -> str:
    """A comparison in words."""
    return (
        f"{row['number']} {row['metric']}: {row['a']:.4g} -> {row['b']:.4g}, "
        f"{row['difference']:+.4g} [{row['ci_low']:+.4g}, {row['ci_high']:+.4g}], "
        f"p {row['p_holm']:.2g}, n = {row['n_samples']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("a", help="results folder of the earlier run")
    parser.add_argument("b", help="results folder of the later run")
    parser.add_argument(
        "--output", default="results/compare", help="path of the files, without their suffix"
    )
    arguments = parser.parse_args()
    comparisons = compare_folders(arguments.a, arguments.b)

    # Printed first, because writing may fail.
    summary_lines = list(summarise_comparisons(comparisons))
    moved_lines = [format_comparison(row) for row in comparisons if row["moved"]]
    print(*summary_lines, "", *moved_lines, sep="\n", flush=True)

    svg_text = style.render_svg(draw_comparisons(comparisons), salt="compare")
    page_html = render_comparisons(comparisons, arguments.a, arguments.b, summary_lines, svg_text)
    parquet.write_text(f"{arguments.output}.csv", as_csv(comparisons))
    parquet.write_text(f"{arguments.output}.svg", svg_text)
    parquet.write_text(f"{arguments.output}.html", page_html)
    print(f"\n{arguments.output}.csv, .svg and .html hold every comparison.")


if __name__ == "__main__":
    with report_errors():
        main()

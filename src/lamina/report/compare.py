"""Which numbers of two results folders differ by more than their error.

`python -m lamina.report.compare A B --output results/compare` prints them and writes OUTPUT.csv, OUTPUT.svg and
OUTPUT.html.
Benchmarks of the same documents are compared document by document: a, b and their difference are means over documents.
For a loss per token these means differ from the values in table `benchmarks`. All other numbers are compared by their
intervals as if they were independent; this is on the safe side if they share samples. Speeds are compared by their
logarithms, with one test for each distinct timing. p values are corrected for the number of comparisons of their table
by Holm's method, and for the number of tables. So if nothing has moved, the chance that any number is called moved is
less than 1 in 20.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure
from scipy.stats import t as student

from lamina.errors import LaminaError, explained
from lamina.report.answers import as_csv, rows
from lamina.report.database import relation
from lamina.report.figures import style
from lamina.report.paired_tests import holm, tested, timing_degrees
from lamina.store import parquet as store
from lamina.study import paths

LEVEL = 0.05
TEMPLATE = paths.own("workflow/report/compare.html.j2")
VARIANT = ("model", "calibration", "selector", "removed", "repair", "healing")
COLUMNS = (
    *(
        "table",
        "number",
        "metric",
        "a",
        "b",
        "difference",
        "ci_low",
        "ci_high",
        "p_value",
        "p_holm",
        "moved",
        "better",
    ),
    *("paired", "n_samples"),
)
_SAME = "concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing{})"

# Of every table what a number is called, the number, its standard error, and which way is better.
NUMBERS = {
    "benchmarks": f"""
        SELECT {_SAME.format(", task")} AS number, metric, value, stderr, n_samples, higher_is_better, task,
            task_version || ' ' || n_shot AS made, {", ".join(VARIANT)}
        FROM benchmarks AS m
        -- a text's perplexity is exp of its nll, which is compared document by document
        WHERE metric <> 'nll_per_log_vocabulary' AND NOT (metric = 'perplexity' AND EXISTS (
            FROM benchmarks AS o WHERE o.model = m.model AND o.task = m.task AND o.metric = 'nll'))""",
    "relevance": """
        SELECT concat_ws('/', model, calibration, component, unit) AS number, metric, score AS value, ci_low, ci_high,
            n_samples, NULL AS higher_is_better
        FROM relevance WHERE selector = 'base' AND removed = 0 AND score IS NOT NULL""",
    "efficiency": f"""
        SELECT {_SAME.format("")} AS number, unnest(['latency_ratio', 'tokens_per_second_ratio']) AS metric,
            unnest([latency_ratio, tokens_per_second_ratio]) AS value,
            unnest([latency_ratio_stderr, tokens_per_second_ratio_stderr]) AS stderr, repeats AS n_samples,
            unnest([false, true]) AS higher_is_better
        FROM (
            SELECT *, {_SAME.format("")} AS own FROM efficiency WHERE removed > 0
            QUALIFY row_number() OVER (PARTITION BY coalesce(timed, own) ORDER BY timed <> own, own) = 1)""",
}
PAIRS = f"""
    SELECT {_SAME.format(", task")} AS number, metric, task, list(b.value - a.value) AS differences,
        avg(a.value) AS a, avg(b.value) AS b
    FROM {{}} AS a JOIN {{}} AS b USING ({", ".join(VARIANT)}, task, metric, sample)
    WHERE isfinite(a.value) AND isfinite(b.value) GROUP BY ALL"""


def compared(a: str | Path, b: str | Path) -> list[dict[str, Any]]:
    """One row per number that both folders hold with an error; moved numbers come first. `COLUMNS` are its keys.

    Raises LaminaError if a folder holds no tables, or if the folders have no number in common.
    """
    folders = [_tables(Path(folder)) for folder in (a, b)]
    differences: list[dict[str, Any]] = []
    tables = 0
    for table in NUMBERS:
        one, other = (
            {(row["number"], row["metric"]): row for row in _numbers(folder, table)}
            for folder in folders
        )
        pairs = _pairs(*folders) if table == "benchmarks" else {}
        both = [(table, one[key], other[key], pairs.get(key)) for key in one if key in other]
        judged = [row for row in map(_row, both) if row]
        tables += bool(judged)
        differences += [
            row | {"p_holm": corrected}
            for row, corrected in zip(judged, holm([row["p_value"] for row in judged]), strict=True)
        ]
    for row in differences:
        row["p_holm"] = min(1.0, tables * row["p_holm"])
        row["moved"] = row["p_holm"] < LEVEL
        unknown = row["up"] is None or not row["moved"]
        row["better"] = None if unknown else (row["difference"] > 0) == row["up"]
    if not differences:
        raise LaminaError(
            f"{a} and {b} hold no number in common. Compare two runs that share variants."
        )
    differences.sort(key=lambda row: (not row["moved"], row["p_holm"], row["p_value"]))
    return [{name: row[name] for name in COLUMNS} for row in differences]


def _tables(folder: Path) -> Path:
    tables = folder / "tables" if (folder / "tables").is_dir() else folder
    if (
        not (tables / "benchmarks.parquet").is_file()
        and not (tables / "relevance.parquet").is_file()
    ):
        raise LaminaError(
            f"{folder} holds no tables/*.parquet. Write a results folder: make compare A=results B=..."
        )
    return tables


def _numbers(tables: Path, table: str) -> list[dict[str, Any]]:
    file = tables / f"{table}.parquet"
    if not file.is_file():
        return []
    store.metadata(file)  # that it is whole, which DuckDB does not see
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW {table} AS FROM {relation(file)}")
        return rows(connection, NUMBERS[table])


def _pairs(one: Path, other: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """b - a of every document and the means of a and b, by number and metric; only for tests on the same documents."""
    files = [tables / "benchmark_samples.parquet" for tables in (one, other)]
    if not all(file.is_file() for file in files):
        return {}
    for file in files:
        store.metadata(file)
    with duckdb.connect() as connection:
        pairs = rows(connection, PAIRS.format(*map(relation, files)))
    same = {task: _same_documents(one, other, task) for task in {row["task"] for row in pairs}}
    return {(row["number"], row["metric"]): row for row in pairs if same[row["task"]]}


def _same_documents(one: Path, other: Path, task: str) -> bool:
    """Whether their hashes are equal; if a folder holds tables alone, documents are compared by number."""
    files = [tables.parent / "tasks" / f"{task}.parquet" for tables in (one, other)]
    return not all(file.is_file() for file in files) or store.read(files[0]).equals(
        store.read(files[1])
    )


def _row(
    both: tuple[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any] | None],
) -> dict[str, Any] | None:
    """A comparison; None if an error is not known."""
    table, one, other, documents = both
    differences: Sequence[float] = documents["differences"] if documents else ()
    place = {
        "table": table,
        "number": one["number"],
        "metric": one["metric"],
        "up": one["higher_is_better"],
    }
    place |= {"a": one["value"], "b": other["value"]}
    whole = len(differences) == one["n_samples"] == other["n_samples"]
    if documents and whole and one.get("made") == other.get("made"):
        return (
            place
            | {"a": documents["a"], "b": documents["b"], "paired": True}
            | tested([differences])
        )
    place |= {"paired": False, "n_samples": min(one["n_samples"], other["n_samples"])}
    difference = apart(table == "efficiency", one, other)
    return place | difference if difference else None


def apart(
    speeds: bool, one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, float] | None:
    """Difference of two independent numbers, its 95 % interval and p, by Welch's t; None if an error is not known.

    Each number contributes the side of its interval that faces the other number, so the interval of the difference may
    be asymmetric [Zou and Donner 2008]. Ratios of `speeds` are compared by their logarithms.
    """
    first, second = _ends(speeds, one), _ends(speeds, other)
    if first is None or second is None:
        return None
    (a, *reaches_a), (b, *reaches_b) = first, second
    degrees = [_degrees(speeds, row["n_samples"]) for row in (one, other)]
    difference = b - a
    # Below and above the difference: how far a reaches up and b down, and the reverse.
    below, above = (
        _reach(pair, degrees)
        for pair in ((reaches_a[1], reaches_b[0]), (reaches_a[0], reaches_b[1]))
    )
    (reach, error, freedom), (up, _, _) = (below, above) if difference > 0 else (above, below)
    low, high = (
        (difference - reach, difference + up)
        if difference > 0
        else (difference - up, difference + reach)
    )
    p = float(2 * student.sf(abs(difference) / error, freedom)) if difference else 1.0
    if speeds:
        low, difference, high = (
            one["value"] * math.expm1(value) for value in (low, difference, high)
        )
    return {"difference": difference, "ci_low": low, "ci_high": high, "p_value": p}


def _ends(speeds: bool, row: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """A number, and how far its 95 % interval reaches below and above it. If all samples agree, the interval is as wide
    as if one more sample might differ.
    """
    value, count = row["value"], row["n_samples"]
    if value is None or not abs(value) < float("inf") or not count or count < 2:
        return None
    if row.get("ci_low") is not None and row.get("ci_high") is not None:
        reaches = value - row["ci_low"], row["ci_high"] - value
    elif row.get("stderr") is not None:
        error = row["stderr"] / value if speeds else row["stderr"]
        reaches = (float(student.ppf(0.975, _degrees(speeds, count))) * error,) * 2
    else:
        return None
    least = 1 / (count + 1) if max(reaches) == 0 else 0.0
    return math.log(value) if speeds else value, max(reaches[0], least), max(reaches[1], least)


def _degrees(speeds: bool, count: int) -> int:
    return timing_degrees(count) if speeds else count - 1


def _reach(reaches: tuple[float, float], degrees: Sequence[int]) -> tuple[float, float, float]:
    """Half the width of a difference's interval, its standard error, and Welch's degrees of freedom."""
    errors = [
        reach / float(student.ppf(0.975, n)) for reach, n in zip(reaches, degrees, strict=True)
    ]
    square = sum(error**2 for error in errors)
    if not square:
        return 0.0, 1e-300, 1.0
    freedom = square**2 / sum(error**4 / n for error, n in zip(errors, degrees, strict=True))
    return float(student.ppf(0.975, freedom)) * square**0.5, square**0.5, freedom


def headline(differences: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many numbers were compared and how many moved, table by table."""
    if all(row["a"] == row["b"] for row in differences):
        yield f"A and B hold the same {len(differences)} numbers: nothing could move"
    for table in NUMBERS:
        there = [row for row in differences if row["table"] == table]
        moved = [row for row in there if row["moved"]]
        better, worse = (sum(row["better"] is way for row in moved) for way in (True, False))
        ways = f" ({better} better, {worse} worse)" if better or worse else ""
        if there:
            paired = sum(row["paired"] for row in there)
            yield f"{table}: {len(moved)} of {len(there)} numbers moved{ways}; {paired} were compared by document"


def line(row: Mapping[str, Any]) -> str:
    """A comparison in words."""
    return (
        f"{row['number']} {row['metric']}: {row['a']:.4g} -> {row['b']:.4g}, {row['difference']:+.4g} "
        f"[{row['ci_low']:+.4g}, {row['ci_high']:+.4g}], p {row['p_holm']:.2g}, n = {row['n_samples']}"
    )


def draw(differences: Sequence[Mapping[str, Any]], most: int = 20) -> Figure:
    """Differences with 95 % intervals, a panel per table and metric: the moved numbers, or else those with least p."""
    groups = style.grouped(differences, "table", "metric")
    ranked = sorted(groups.items(), key=lambda group: group[1][0]["p_holm"])[:8]
    shown = {
        key: ([row for row in group if row["moved"]] or group[:3])[:most] for key, group in ranked
    }
    heights = [0.9 + 0.22 * len(group) for group in shown.values()]
    figure = Figure(figsize=(9, sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights).ravel()
    for axes, ((table, metric), group) in zip(panels, shown.items(), strict=True):
        for place, row in enumerate(reversed(group)):
            colour = {True: style.COLOURS[2], False: style.COLOURS[1], None: style.COLOURS[0]}[
                row["better"]
            ]
            colour = colour if row["moved"] else "#9a9a9a"
            axes.plot([row["ci_low"], row["ci_high"]], [place, place], color=colour, linewidth=1.6)
            axes.plot(
                row["difference"],
                place,
                style.MARKERS[0 if row["moved"] else 1],
                color=colour,
                markersize=5,
            )
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(
            range(len(group)),
            [f"{row['number']}  n = {row['n_samples']}" for row in reversed(group)],
        )
        axes.set_ylim(-0.6, len(group) - 0.4)
        moved = sum(row["moved"] for row in groups[table, metric])
        axes.set_title(
            f"{table}, {metric}: {moved} of {len(groups[table, metric])} moved", loc="right"
        )
        axes.set_xlabel("B - A, with 95 % interval")
    return figure


def page(differences: Sequence[Mapping[str, Any]], a: str, b: str, svg: str) -> str:
    """The comparison as one HTML file."""
    shown = [row for row in differences if row["moved"]] or differences[:20]
    text = Path(TEMPLATE).read_text(encoding="utf-8")
    return jinja2.Template(
        text, autoescape=True, trim_blocks=True, keep_trailing_newline=True
    ).render(
        a=a,
        b=b,
        headline=headline(differences),
        svg=Markup(svg[svg.index("<svg") :]),
        columns=COLUMNS,
        rows=shown,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("a", help="results folder of the earlier run")
    parser.add_argument("b", help="results folder of the later run")
    parser.add_argument(
        "--output", default="results/compare", help="path of the files, without their suffix"
    )
    arguments = parser.parse_args()
    differences = compared(arguments.a, arguments.b)
    # Said before anything is written, which may fail.
    print(
        *headline(differences),
        "",
        *(line(row) for row in differences if row["moved"]),
        sep="\n",
        flush=True,
    )
    svg = style.render_svg(draw(differences), salt="compare")
    store.write_text(f"{arguments.output}.csv", as_csv(differences))
    store.write_text(f"{arguments.output}.svg", svg)
    store.write_text(f"{arguments.output}.html", page(differences, arguments.a, arguments.b, svg))
    print(f"\n{arguments.output}.csv, .svg and .html hold every comparison.")


if __name__ == "__main__":
    with explained():
        main()

"""No name of a metric, a strategy or a repair stands outside its own file."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

from lamina.options.metrics import METRICS
from lamina.options.repairs import Repair
from lamina.options.selectors import Selector
from lamina.store import parquet
from tests import ROOT

SOURCE = ROOT / "src"
COLUMNS = {name for table in ("activations", "sweeps") for name in parquet.TABLES[table].columns}

# What may name some of them, by the start of a path, and why.
METRIC_NAMES: Mapping[str, set[str]] = {
    "lamina/engine/": COLUMNS,  # names of columns, in the rows that passes write
    "lamina/tables/": COLUMNS,  # which describe the columns
    "lamina/options/selectors.py": {"accuracy", "cosine"},  # examples where the key is missing
    "lamina/selection/strategies/evolutionary.py": {"accuracy", "output_kl"},  # the same
    # its members, and what decides between them, where the keys are missing
    "lamina/selection/strategies/portfolio.py": {"accuracy", "cosine", "output_kl", "perplexity"},
    "lamina_workflow/report/": {
        "accuracy",
        "cosine",
        "perplexity",
    },  # what the page compares; measures of benchmarks have such names
    "lamina_workflow/report/figures/calibration_size.py": {
        "margin"
    },  # the four metrics that the figure compares
    "lamina/evaluation/": {"accuracy", "perplexity"},  # measures of benchmarks
    "lamina_workflow/checks/names.py": {"perplexity"},  # a key of the section `benchmarks`
    "lamina/notebook.py": {"accuracy", "cosine", "perplexity"},  # what it measures by default
    "lamina/selection/residuals.py": {"residual"},  # the column that it writes
    "lamina/selection/strategies/pairwise.py": {"output_kl", "perplexity"},  # it takes no others
    "lamina/diagnosis/probe.py": {"accuracy"},  # a measure of the probe
    "lamina/repair/methods/replaceme.py": {"cosine"},  # an objective of the method
    "lamina/healing/": {"random"},  # weights and generators
    "lamina/selection/strategies/random.py": {"random"},
    "lamina/models/": {"residual"},  # an argument of layers that add the stream themselves
}
STRATEGY_NAMES: Mapping[str, set[str]] = {
    "lamina/options/selectors.py": {"iterative"},  # the default of the key
    "lamina/selection/strategies/portfolio.py": {
        "block",
        "clusters",
    },  # its members where the key is missing
    "lamina/healing/": {"random"},
    "lamina/relevance/metrics/weights.py": {"random"},
    "lamina_workflow/stages/": {"block"},  # a block of a sweep
}
REPAIR_NAMES: Mapping[str, set[str]] = {}


def strings(file: Path) -> set[str]:
    """The texts that a module quotes, without docstrings."""
    return {
        node.value
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize(
    ("names", "home", "allowed"),
    [
        (set(METRICS), "lamina/relevance/metrics/", METRIC_NAMES),
        ({kind.title() for kind in Selector.kinds()}, "", STRATEGY_NAMES),
        ({kind.title() for kind in Repair.kinds()}, "", REPAIR_NAMES),
    ],
    ids=["metrics", "strategies", "repairs"],
)
def test_names_of_methods_stand_in_their_own_files(
    names: set[str], home: str, allowed: Mapping[str, set[str]]
) -> None:
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        own = {file.stem} if file.parent.name in ("strategies", "methods") else set()
        known = own.union(*(words for start, words in allowed.items() if place.startswith(start)))
        if not home or not place.startswith(home):
            found += [f"{place}: '{name}'" for name in sorted(names & strings(file) - known)]
    assert not found, "\n".join(found)


def test_sql_names_no_metric_but_those_that_the_report_compares() -> None:
    """A metric with the name of a column of a table, or of a measure of benchmarks, is not told from it here."""
    words = COLUMNS | {"perplexity", "random"}
    for file in (ROOT / "sql").rglob("*.sql"):
        text = file.read_text(encoding="utf-8")
        for name in METRICS.keys() - words - {"accuracy"}:
            assert f"'{name}'" not in text, f"{file.name}: {name}"

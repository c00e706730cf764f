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
COLUMNS = {*parquet.TABLES["activations"].columns, *parquet.TABLES["sweeps"].columns}
# The names that some files may quote, by the start of their paths.
AllowedNames = Mapping[str, set[str]]

METRIC_NAMES: AllowedNames = {
    # Columns in the rows that passes write, and their descriptions.
    "lamina/engine/": COLUMNS,
    "lamina/tables/": COLUMNS,
    # Examples where the key `metric` is missing.
    "lamina/options/selectors.py": {"accuracy", "cosine"},
    # Its members, and what decides between them, where the keys are missing.
    "lamina/selection/strategies/portfolio.py": {"accuracy", "cosine", "output_kl", "perplexity"},
    # It takes no others.
    "lamina/selection/strategies/pairwise.py": {"output_kl", "perplexity"},
    # What it measures by default.
    "lamina/notebook.py": {"accuracy", "cosine", "perplexity"},
    # Measures of benchmarks and of the probe, and what the report compares.
    "lamina/evaluation/": {"accuracy", "exact_match", "perplexity"},
    "lamina/diagnosis/probe.py": {"accuracy"},
    "lamina_workflow/report/": {"accuracy", "cosine", "exact_match", "perplexity"},
    "lamina_workflow/report/figures/calibration_size.py": {"margin"},
    "lamina_workflow/report/figures/layer_maps.py": {"angular"},
    # Keys of the configurations of papers.
    "lamina_workflow/papers/": {"exact_match", "perplexity"},
    # What lm-eval calls the same of a task.
    "lamina/data/": {"exact_match"},
    "lamina_workflow/checks/written.py": {"exact_match"},
    # A key of the section `benchmarks`.
    "lamina/api/outcome.py": {"perplexity"},
    "lamina_workflow/checks/names.py": {"perplexity"},
    # The recommended way, which `lamina prune` writes into a study.
    "lamina_workflow/prune_study.py": {"cosine", "output_kl", "perplexity"},
    # An objective of the method.
    "lamina/repairs/methods/replaceme.py": {"cosine"},
    # Weights and generators.
    "lamina/healing/": {"random"},
    "lamina/selection/strategies/random.py": {"random"},
}
STRATEGY_NAMES: AllowedNames = {
    # The default of the key `strategy`.
    "lamina/options/selectors.py": {"iterative"},
    # Its members where the key is missing.
    "lamina/selection/strategies/portfolio.py": {"block", "clusters"},
    "lamina/healing/": {"random"},
    "lamina/relevance/metrics/weights.py": {"random"},
    "lamina_workflow/prune_study.py": {"block", "clusters", "portfolio"},
    # A block of a sweep.
    "lamina_workflow/stages/": {"block"},
}
REPAIR_NAMES: AllowedNames = {"lamina_workflow/prune_study.py": {"ghost"}}


def read_strings(file: Path) -> set[str]:
    """The strings that a module quotes."""
    return {
        node.value
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def list_foreign_names(names: set[str], allowed_names: AllowedNames) -> list[str]:
    """The names that a file quotes though they are neither its own nor allowed there."""
    foreign_names = []
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE).as_posix()
        if path.startswith("lamina/relevance/metrics/") and names == set(METRICS):
            continue
        allowed = {file.stem} if file.parent.name in ("strategies", "methods") else set()
        for path_start, path_names in allowed_names.items():
            if path.startswith(path_start):
                allowed |= path_names
        for name in sorted(names & read_strings(file) - allowed):
            foreign_names.append(f"{path}: '{name}'")
    return foreign_names


def test_names_of_metrics_stand_in_their_own_files() -> None:
    assert list_foreign_names(set(METRICS), METRIC_NAMES) == []


@pytest.mark.parametrize(
    ("base", "allowed_names"), [(Selector, STRATEGY_NAMES), (Repair, REPAIR_NAMES)]
)
def test_names_of_strategies_and_repairs_stand_in_their_own_files(
    base: type[Selector] | type[Repair], allowed_names: AllowedNames
) -> None:
    names = {kind.title() for kind in base.kinds()}

    assert list_foreign_names(names, allowed_names) == []


def test_sql_names_no_metric_but_those_that_the_report_compares() -> None:
    """A metric with the name of a column, or of a measure of benchmarks, cannot be told apart."""
    names = METRICS.keys() - COLUMNS - {"accuracy", "exact_match", "perplexity", "random"}

    for file in (ROOT / "sql").rglob("*.sql"):
        text = file.read_text(encoding="utf-8")
        assert not [name for name in names if f"'{name}'" in text], file.name

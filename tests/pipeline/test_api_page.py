"""docs/api.md: its code runs, and gives the plans and the numbers of a run of the workflow."""

import re
from contextlib import chdir
from typing import Any

import pytest
import yaml

import lamina
from lamina.api.inputs import PreparedModel
from lamina.store import checksum
from tests import ROOT
from tests.pipeline.project import Project, copy_project

pytestmark = pytest.mark.slow

REPAIRS = {"ghost_mixed": {"method": "ghost", "data": {"own": 1, "general": 0.1}}}
STEPWISE = {
    "wide": {"metric": "perplexity", "also": {"general": 1}},
    "looped": {"metric": "output_kl", "repair": "ghost_mixed"},
    "run": {"metric": "angular", "strategy": "block"},
    "drawn": {"strategy": "random", "seed": 1},
}
"""Other ways to choose, which the page does not show."""

CONFIGURATION = {
    "seed": 0,
    "models": {"reference": {"source": "resources/reference", "dtype": "float32"}},
    "calibrations": {
        "facts": {"task": "microworld_facts", "split": "validation", "limit": 200},
        "general": {"text": "microworld_corpus", "split": "validation", "documents": "0:100"},
    },
    "selectors": {
        "portfolio": {
            "strategy": "portfolio",
            "repairs": ["ghost_mixed"],
            "also": {"general": 1},
        },
        **STEPWISE,
    },
    "repairs": REPAIRS,
    "healings": {
        "lora": {
            "method": "lora",
            "rank": 8,
            "max_steps": 20,
            "data": {"own": 1, "general": 0.1},
        }
    },
    "benchmarks": {
        "tasks": {"microworld_facts": {"limit": 200}},
        "perplexity": {"corpus": {"text": "microworld_corpus", "documents": "0:50", "window": 128}},
    },
    "studies": {
        "page": {
            "models": ["reference"],
            "calibrations": ["facts"],
            "selectors": ["portfolio"],
            "removed": [1, "25%"],
            "repairs": ["none", "ghost_mixed"],
            "healings": ["none", "lora"],
        },
        "stepwise": {
            "models": ["reference"],
            "calibrations": ["facts"],
            "selectors": list(STEPWISE),
            "removed": [1, 2],
            "tasks": [],
            "perplexity": [],
        },
    },
}
Namespace = dict[str, Any]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run of the configuration that asks for what the page asks for."""
    project = copy_project(tmp_path_factory.mktemp("page"), "tests/configs/minimal.yaml")
    project.config.write_text(yaml.safe_dump(CONFIGURATION))
    plans = [
        f"results/plans/reference/facts/{name}/removed={size}.json"
        for name in STEPWISE
        for size in (1, 2)
    ]
    project.run("results/tables/benchmarks.parquet", *plans)
    return project


@pytest.fixture(scope="module")
def page(project: Project) -> Namespace:
    """What the first code of the page leaves behind."""
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)[0]
    namespace: Namespace = {}
    with chdir(project.folder):
        exec(code, namespace)
    return namespace


def read_plan(project: Project, selector: str, size: int) -> dict[str, Any]:
    plan: dict[str, Any] = checksum.read_json(
        project.folder / f"results/plans/reference/facts/{selector}/removed={size}.json"
    )
    return plan


def test_the_page_finds_the_plans_of_the_workflow(project: Project, page: Namespace) -> None:
    for variant, size in ((page["small"], 1), (page["smaller"], 3)):
        expected = read_plan(project, "portfolio", size)
        choice = variant.plan.choice

        assert variant.plan.units == expected["units"]
        assert choice["repair"] == expected["choice"]["repair"]
        assert choice["members"].keys() == expected["choice"]["members"].keys()
        assert choice["loss"] == pytest.approx(expected["choice"]["loss"], rel=1e-4)


def test_the_page_measures_what_the_workflow_measures(project: Project, page: Namespace) -> None:
    keys = ("removed", "repair", "healing", "task", "metric")
    query = f"SELECT {', '.join(keys)}, value, stderr, n_samples FROM benchmarks"
    expected = {row[:5]: row[5:] for row in project.query(query)}

    rows = page["measured"].benchmarks.to_pylist()
    variants = {(row["removed"], row["repair"], row["healing"]) for row in rows}
    assert len(variants) == 5  # the base model too
    for row in rows:
        values = (row["value"], row["stderr"], row["n_samples"])
        expected_values = expected[tuple(row[key] for key in keys)]
        assert values == pytest.approx(expected_values, rel=1e-3, abs=1e-6)


def test_the_page_exports_what_it_measured(project: Project, page: Namespace) -> None:
    card = (project.folder / "facts-25/README.md").read_text(encoding="utf-8")

    assert "| microworld_facts | acc |" in card
    with chdir(project.folder):
        lamina.load("facts-25", device="cpu")


@pytest.mark.parametrize("selector", list(STEPWISE))
def test_other_ways_to_choose_give_the_plans_of_the_workflow(
    project: Project, page: Namespace, selector: str
) -> None:
    base: PreparedModel = page["base"]
    calibrations = [page["facts"], page["general"]]

    variants = lamina.select(
        base, calibrations, removed=[1, 2], name=selector, repairs=REPAIRS, **STEPWISE[selector]
    )

    for variant in variants:
        expected = read_plan(project, selector, variant.plan.removed)
        assert variant.plan.units == expected["units"]
        assert variant.plan.scores == pytest.approx(expected["scores"], rel=1e-3, abs=1e-6)

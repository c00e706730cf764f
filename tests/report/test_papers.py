"""Numbers of papers beside those of a run."""

import csv
from pathlib import Path

import pytest
import yaml

from lamina.report import answers, database
from tests import ROOT
from tests.given.plausible_tables import write_tables

EXPECTED = ROOT / "config/papers/expected.csv"
SOURCE = "meta-llama/Meta-Llama-3-8B"


def numbers() -> list[dict[str, str]]:
    with EXPECTED.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_is_compared_with_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1 has .7496 for ARC-easy by accuracy, .8102 for the base, and .4957 for ARC-challenge."""
    base = dict(model="mine", calibration="none", selector="none", removed=0, repair="none", healing="none")
    cut = base | dict(calibration="arc_easy", selector="accuracy", removed=8)
    told = dict(metric="acc_norm", stderr=0.01, n_samples=2000, n_shot=0, higher_is_better=True, task_version="1")
    files = write_tables(
        tmp_path,
        models=[dict(model="mine", source=SOURCE, n_layers=32)],
        benchmarks=[
            base | told | dict(task="arc_easy", value=0.78),
            cut | told | dict(task="arc_easy", value=0.76),
            cut | told | dict(task="arc_challenge", value=0.5137),
            cut | told | dict(task="arc_easy", value=0.9, repair="ghost"),
            cut | told | dict(task="sciq", value=0.9),
        ],
    )
    monkeypatch.chdir(ROOT)
    found = answers.answer(database.connect(ROOT / "sql/views.sql", files), "what_papers_report")
    wanted = [(1, 0, "arc_easy", 0.8102, False), (1, 8, "arc_easy", 0.7496, True)]
    wanted += [(7, 8, "arc_challenge", 0.5137, True), (7, 8, "arc_easy", 0.7496, True)]
    assert [
        tuple(row[name] for name in ("table_number", "removed", "task", "published", "within")) for row in found
    ] == wanted
    assert found[1]["difference"] == pytest.approx(0.0104)


def test_every_number_is_of_a_variant_that_a_configuration_asks_for() -> None:
    """By the names of config/papers, and shares between chance of four choices, less noise, and one."""
    raw = yaml.safe_load((ROOT / "config/papers/rethinking-layer-relevance.yaml").read_text(encoding="utf-8"))
    tasks, sources = raw["benchmarks"]["tasks"].keys(), {entry["source"] for entry in raw["models"].values()}
    for row in numbers():
        assert row["source"] in sources and tasks <= row.keys()
        assert {row["calibration"]} <= raw["calibrations"].keys() | {"own", "none"}
        assert {row["selector"]} <= raw["selectors"].keys() | {"none"}
        assert row["healing"] in {"none", *raw["healings"]} and int(row["removed"]) in {0, 8, 16, 24}
        assert all(0.19 <= float(row[task]) <= 0.9 for task in tasks)

"""The tables: schemas that describe every column once, and files that outlive a new column."""

import ast
import re
from pathlib import Path

import pyarrow as pa
import pytest

from lamina.errors import LaminaError
from lamina.report import dictionary
from lamina.store import parquet as store

ROOT = Path(__file__).parents[2]
TABLES = sorted(store.TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_says_what_a_row_is_and_what_each_column_means(table):
    module = store.TABLES[table]
    assert module.GRAIN.startswith("One row per ")
    for name, (kind, description) in module.COLUMNS.items():
        assert isinstance(kind, pa.DataType)
        assert description.endswith("."), f"{table}.{name}"


@pytest.mark.parametrize("table", TABLES)
def test_the_workflow_can_read_a_grain_without_importing_arrow(table):
    """Rules find the tables by this literal."""
    tree = ast.parse((ROOT / "src" / "lamina" / "tables" / f"{table}.py").read_text(encoding="utf-8"))
    (grain,) = [s.value for s in tree.body if isinstance(s, ast.Assign) and s.targets[0].id == "GRAIN"]
    assert ast.literal_eval(grain) == store.TABLES[table].GRAIN


def test_descriptions_of_tables_stand_in_no_other_place():
    sql = (ROOT / "sql" / "views.sql").read_text(encoding="utf-8")
    assert set(re.findall(r"COMMENT ON (?:VIEW|COLUMN) (\w+)", sql)) & set(TABLES) == set()


def test_the_page_of_tables_is_in_step():
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert page == dictionary.page(ROOT / "sql" / "views.sql"), (
        "docs/tables.md is out of step. Write it again: "
        "PYTHONPATH=src python -m lamina.report.dictionary > docs/tables.md"
    )


def test_a_part_without_a_new_column_need_not_be_measured_again(tmp_path):
    old = store.from_rows("efficiency", [dict(model="m", removed=1, latency_ms=2.5)]).drop_columns(["runs"])
    new = store.from_rows("efficiency", [dict(model="m", removed=2, runs=2, latency_ms=1.5)])
    for name, part in (("old", old), ("new", new)):
        store.write(tmp_path / name, part)
    found = store.gather("efficiency", [tmp_path / "old", tmp_path / "new"])
    assert found.schema == store.schema("efficiency")
    assert found.select(["removed", "runs", "latency_ms"]).to_pylist() == [
        dict(removed=1, runs=None, latency_ms=2.5),
        dict(removed=2, runs=2, latency_ms=1.5),
    ]


def test_lists_of_numbers_survive_gathering(tmp_path):
    part = store.from_rows("activations", [dict(model="m", layer=0, span=0, channel_magnitude=[0.5, 1.5])])
    store.write(tmp_path / "a", part)
    assert store.gather("activations", [tmp_path / "a", tmp_path / "a"]).to_pylist() == 2 * part.to_pylist()


@pytest.mark.parametrize(
    "change",
    [lambda t: t.append_column("speed", pa.array([1.0])), lambda t: t.set_column(0, "rule", pa.array([7]))],
    ids=["unknown", "retyped"],
)
def test_a_part_with_unknown_or_retyped_columns_is_refused(change, tmp_path):
    store.write(tmp_path / "part.parquet", change(store.from_rows("jobs", [dict(rule="r")])))
    with pytest.raises(LaminaError, match="part.parquet does not hold the columns of table 'jobs'.*Delete the file"):
        store.gather("jobs", [tmp_path / "part.parquet"])

"""The tables: schemas that describe every column once, and files that outlive a new column."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
import tables_page as dictionary

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina.tables import TABLES, table_digest
from lamina.tables.columns import Column, Table

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_table_says_what_a_row_is_and_what_each_column_means(table):
    described = TABLES[table]
    assert described.grain.startswith("One row per ")
    assert parquet.schema_of(table).names == list(described.columns)
    for name, column in described.columns.items():
        assert column.description.endswith("."), f"{table}.{name}"


@pytest.mark.parametrize("change", ["grain", "description", "type", "column"])
def test_a_change_of_a_table_changes_its_digest_alone(change, monkeypatch):
    before = {table: table_digest(table) for table in TABLES}
    jobs = TABLES["jobs"]
    changed = {
        "grain": Table("One row per day.", jobs.columns),
        "description": Table(jobs.grain, jobs.columns | {"rule": Column("string", "Rule.")}),
        "type": Table(
            jobs.grain,
            jobs.columns | {"rule": Column("int64", jobs.columns["rule"].description)},
        ),
        "column": Table(jobs.grain, jobs.columns | {"day": Column("string", "Day.")}),
    }
    monkeypatch.setitem(TABLES, "jobs", changed[change])
    assert [table for table in TABLES if table_digest(table) != before[table]] == ["jobs"]


def test_descriptions_of_tables_stand_in_no_other_place():
    sql = (ROOT / "sql" / "views.sql").read_text(encoding="utf-8")
    assert set(re.findall(r"COMMENT ON (?:VIEW|COLUMN) (\w+)", sql)) & set(TABLES) == set()


def test_the_page_of_tables_is_in_step():
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert page == dictionary.page(ROOT / "sql" / "views.sql"), (
        "docs/tables.md is out of step. Write it again: PYTHONPATH=src python tools/tables_page.py > docs/tables.md"
    )


def test_a_part_without_a_new_column_need_not_be_measured_again(tmp_path):
    old = parquet.from_rows(
        "efficiency", [dict(model="m", removed=1, latency_ms=2.5)]
    ).drop_columns(["runs"])
    new = parquet.from_rows("efficiency", [dict(model="m", removed=2, runs=2, latency_ms=1.5)])
    for name, part in (("old", old), ("new", new)):
        parquet.write_table(tmp_path / name, part)
    found = parquet.gather_tables("efficiency", [tmp_path / "old", tmp_path / "new"])
    assert found.schema == parquet.schema_of("efficiency")
    assert found.select(["removed", "runs", "latency_ms"]).to_pylist() == [
        dict(removed=1, runs=None, latency_ms=2.5),
        dict(removed=2, runs=2, latency_ms=1.5),
    ]


def test_lists_of_numbers_survive_gathering(tmp_path):
    part = parquet.from_rows(
        "activations", [dict(model="m", layer=0, span=0, channel_magnitude=[0.5, 1.5])]
    )
    parquet.write_table(tmp_path / "a", part)
    assert (
        parquet.gather_tables("activations", [tmp_path / "a", tmp_path / "a"]).to_pylist()
        == 2 * part.to_pylist()
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.append_column("speed", pa.array([1.0])),
        lambda t: t.set_column(0, "rule", pa.array([7])),
    ],
    ids=["unknown", "retyped"],
)
def test_a_part_with_unknown_or_retyped_columns_is_refused(change, tmp_path):
    parquet.write_table(
        tmp_path / "part.parquet", change(parquet.from_rows("jobs", [dict(rule="r")]))
    )
    with pytest.raises(
        LaminaError, match="part.parquet does not hold the columns of table 'jobs'.*Delete the file"
    ):
        parquet.gather_tables("jobs", [tmp_path / "part.parquet"])

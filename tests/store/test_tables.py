"""Schemas describe every column once, and files of a table outlive a new column."""

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import tables_page

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina.tables import TABLES, table_digest
from lamina.tables.columns import Column, Table
from tests import ROOT

VIEWS = ROOT / "sql" / "views.sql"


@pytest.mark.parametrize("table_name", sorted(TABLES))
def test_a_table_says_what_a_row_is_and_what_each_column_means(table_name: str) -> None:
    table = TABLES[table_name]
    assert table.grain.startswith("One row per ")
    assert parquet.schema_of(table_name).names == list(table.columns)
    for column_name, column in table.columns.items():
        assert column.description.endswith("."), column_name


def with_grain(table: Table) -> Table:
    return Table("One row per day.", table.columns)


def with_description(table: Table) -> Table:
    return Table(table.grain, table.columns | {"rule": Column("string", "Rule.")})


def with_type(table: Table) -> Table:
    column = Column("int64", table.columns["rule"].description)
    return Table(table.grain, table.columns | {"rule": column})


def with_column(table: Table) -> Table:
    return Table(table.grain, table.columns | {"day": Column("string", "Day.")})


@pytest.mark.parametrize("change", [with_grain, with_description, with_type, with_column])
def test_a_change_of_a_table_changes_its_digest_alone(
    change: Callable[[Table], Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {name: table_digest(name) for name in TABLES}
    monkeypatch.setitem(TABLES, "jobs", change(TABLES["jobs"]))
    changed_tables = [name for name in TABLES if table_digest(name) != digests[name]]
    assert changed_tables == ["jobs"]


def test_sql_does_not_describe_tables_again() -> None:
    sql = VIEWS.read_text(encoding="utf-8")
    described_names = set(re.findall(r"COMMENT ON (?:VIEW|COLUMN) (\w+)", sql))
    assert not described_names & set(TABLES)


def test_the_page_of_tables_is_up_to_date() -> None:
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert page == tables_page.page(), (
        "docs/tables.md is out of step. Write it again: "
        "PYTHONPATH=src python tools/tables_page.py > docs/tables.md"
    )


def test_a_file_without_a_new_column_need_not_be_measured_again(tmp_path: Path) -> None:
    old_rows = parquet.from_rows("efficiency", [{"model": "m", "removed": 1, "latency_ms": 2.5}])
    new_row = {"model": "m", "removed": 2, "repeats": 2, "latency_ms": 1.5}
    parquet.write_table(tmp_path / "old", old_rows.drop_columns(["repeats"]))
    parquet.write_table(tmp_path / "new", parquet.from_rows("efficiency", [new_row]))

    table = parquet.gather_tables("efficiency", [tmp_path / "old", tmp_path / "new"])

    assert table.schema == parquet.schema_of("efficiency")
    assert table.select(["removed", "repeats", "latency_ms"]).to_pylist() == [
        {"removed": 1, "repeats": None, "latency_ms": 2.5},
        {"removed": 2, "repeats": 2, "latency_ms": 1.5},
    ]


def test_lists_of_numbers_survive_gathering(tmp_path: Path) -> None:
    row = {"model": "m", "layer": 0, "span": 0, "channel_magnitude": [0.5, 1.5]}
    table = parquet.from_rows("activations", [row])
    parquet.write_table(tmp_path / "block", table)
    gathered = parquet.gather_tables("activations", [tmp_path / "block", tmp_path / "block"])
    assert gathered.to_pylist() == 2 * table.to_pylist()


def add_column(table: pa.Table) -> pa.Table:
    return table.append_column("speed", pa.array([1.0]))


def change_type(table: pa.Table) -> pa.Table:
    return table.set_column(0, "rule", pa.array([7]))


@pytest.mark.parametrize("change", [add_column, change_type])
def test_a_file_with_unknown_or_retyped_columns_is_refused(
    change: Callable[[pa.Table], pa.Table], tmp_path: Path
) -> None:
    file = tmp_path / "block.parquet"
    parquet.write_table(file, change(parquet.from_rows("jobs", [{"rule": "r"}])))
    message = "block.parquet does not hold the columns of table 'jobs'.*Delete the file"
    with pytest.raises(LaminaError, match=message):
        parquet.gather_tables("jobs", [file])

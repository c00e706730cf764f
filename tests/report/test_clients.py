"""One file holds a run: it is opened from any folder, by the package and by DuckDB's shell.

By hand the same was tried with the packages duckdb 1.2.2 and 1.5.4: the rows of every table and
the answers of every query were those of the package of the lock file.
"""

import csv
import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import lamina_workflow
from lamina_workflow.report import database
from tests import ROOT
from tests.given.plausible_tables import write_study

SHELL = Path(sys.executable).with_name("duckdb")
QUERIES = sorted((ROOT / "sql/queries").glob("*.sql"))


@pytest.fixture(scope="module")
def sent_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the database of two studies, and nothing else."""
    root = tmp_path_factory.mktemp("studies")
    file = root / "results/lamina.duckdb"
    for study, sizes in {"first": (1,), "my study": (1, 2)}.items():
        tables = write_study(
            root / study, n_layers=6, calibrations=("recall", "facts"), sizes=sizes, n_test=40
        )
        database.build_database(tables, file, study)
    folder = tmp_path_factory.mktemp("sent")
    shutil.copy(file, folder)
    shutil.rmtree(root)
    return folder


@pytest.fixture(scope="module")
def connection(sent_folder: Path) -> duckdb.DuckDBPyConnection:
    return lamina_workflow.results(sent_folder)


def count_rows(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """The number of rows of every table and view, by `"schema".name`."""
    relations = connection.execute(
        """SELECT format('"{}".{}', table_schema, table_name)
        FROM information_schema.tables ORDER BY ALL"""
    ).fetchall()
    counts = {}
    for (relation,) in relations:
        [[count]] = connection.execute(f"SELECT count(*) FROM {relation}").fetchall()
        counts[relation] = count
    return counts


def ask_shell(sent_folder: Path, statements: str, folder: Path) -> list[list[str]]:
    """The rows that the shell prints, started in a folder."""
    options = ["-readonly", "-csv", "-noheader", "-bail", "-nullvalue", ""]
    process = subprocess.run(
        [str(SHELL), *options, str(sent_folder / "lamina.duckdb")],
        input=statements,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr
    return list(csv.reader(io.StringIO(process.stdout)))


def test_every_table_and_view_is_read_from_any_folder(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    counts = count_rows(connection)

    schemas = {relation.split('"')[1] for relation in counts}
    assert schemas == {"main", "first", "my study", "studies"}
    n_first = counts['"first".variants']
    n_second = counts['"my study".variants']
    assert n_second > n_first > 10
    assert counts['"main".variants'] == n_second
    assert counts['"studies".variants'] == n_first + n_second


def test_no_view_reads_a_file_beside_the_database(connection: duckdb.DuckDBPyConnection) -> None:
    views = connection.execute("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall()

    assert views
    assert not [sql for (sql,) in views if "parquet" in sql]


def test_a_connection_answers_in_every_way_that_the_package_has(sent_folder: Path) -> None:
    """Each on a connection of its own, on which nothing was fetched before."""
    assert lamina_workflow.results(sent_folder).sql("FROM variants").fetchall()
    assert len(lamina_workflow.results(sent_folder).sql("FROM variants").df()) > 1
    assert len(lamina_workflow.results(sent_folder).execute("FROM variants").df()) > 1
    assert lamina_workflow.results(sent_folder).sql("FROM variants").to_arrow_table().num_rows > 1


def test_a_connection_answers_with_a_polars_frame(connection: duckdb.DuckDBPyConnection) -> None:
    pytest.importorskip("polars", reason="polars is not installed: .pl() was not tried")

    assert connection.sql("FROM variants").pl().height > 1


def test_the_shell_reads_every_table_and_view_from_any_folder(
    sent_folder: Path, connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    counts = count_rows(connection)
    statements = [f"SELECT '{relation}', count(*) FROM {relation};" for relation in counts]

    rows = ask_shell(sent_folder, "\n".join(statements), tmp_path)

    assert {relation: int(count) for relation, count in rows} == counts


def is_written(text: str, value: Any) -> bool:
    """Whether the shell's text is that of the package's value; lists are written in two ways."""
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, int | float):
        return bool(float(text) == pytest.approx(value, nan_ok=True))
    if isinstance(value, list | tuple):
        return True
    if value is None:
        return text == ""
    return bool(text == value)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.stem)
def test_package_and_shell_give_one_answer_to_a_query(
    query: Path, sent_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # where the numbers of papers are
    sql = query.read_text(encoding="utf-8")

    package_rows = lamina_workflow.results(sent_folder).execute(sql).fetchall()
    shell_rows = ask_shell(sent_folder, sql, ROOT)

    assert len(shell_rows) == len(package_rows)
    for texts, values in zip(shell_rows, package_rows, strict=True):
        assert all(map(is_written, texts, values)), (texts, values)


def test_the_query_of_the_guide_joins_two_runs(sent_folder: Path, tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run / "results").mkdir(parents=True)
        shutil.copy(sent_folder / "lamina.duckdb", tmp_path / run / "results")
    guide = (ROOT / "docs/results.md").read_text()
    [block] = [block for block in guide.split("```sql\n")[1:] if "ATTACH" in block]
    process = subprocess.run(
        [str(SHELL), "-csv", "-bail"],
        input=block.partition("```")[0],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    rows = list(csv.DictReader(io.StringIO(process.stdout)))
    assert rows
    assert all(row["kept_a"] == row["kept_b"] for row in rows)


def test_the_paired_difference_of_the_guide_counts_every_document_once(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """40 of them; calibrations, sizes and repairs are beside those that it asks for."""
    guide = (ROOT / "docs/results.md").read_text()
    [block] = [block for block in guide.split("```sql\n")[1:] if "paired difference" in block]
    names = {"calibration = 'arc_easy'": "calibration = 'facts'"}
    names |= {"task = 'arc_easy'": "task = 'microworld_facts'", "removed = 7": "removed = 1"}
    names["'block'"] = "'accuracy'"
    sql = block.partition("```")[0]
    for name, replacement in names.items():
        assert name in sql
        sql = sql.replace(name, replacement)

    [[_, reach, n_documents]] = connection.execute(sql).fetchall()

    assert n_documents == 40
    assert reach > 0


def test_the_shell_has_the_option_that_opens_a_browser() -> None:
    options = subprocess.run([str(SHELL), "-help"], capture_output=True, text=True, check=True)
    assert "-ui" in options.stdout

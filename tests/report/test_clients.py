"""One file holds a run: it is opened from any folder, by the package and the shell of the lock file.

By hand the same was tried with the packages duckdb 1.2.2 and 1.5.4: the rows of every table and the answers of every
query were those of the package of the lock file.
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
from tests.given.plausible_tables import VIEWS, write_study

SHELL = Path(sys.executable).with_name("duckdb")
QUERIES = sorted((ROOT / "sql/queries").glob("*.sql"))


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of two studies, in a folder that holds nothing else."""
    root = tmp_path_factory.mktemp("made")
    for study, sizes in (("first", (1,)), ("my study", (1, 2))):
        tables = write_study(
            root / study, n_layers=6, calibrations=("recall", "facts"), sizes=sizes, n_test=40
        )
        database.build_database(VIEWS, tables, root / "results/lamina.duckdb", study)
    folder = tmp_path_factory.mktemp("sent")
    shutil.copy(root / "results/lamina.duckdb", folder)
    shutil.rmtree(root)
    return folder


def relations(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Every table and view of the file, with its schema."""
    found = connection.execute(
        "SELECT format('\"{}\".{}', table_schema, table_name) FROM information_schema.tables ORDER BY ALL"
    ).fetchall()
    return [name for (name,) in found]


def test_every_table_and_view_is_read_from_any_folder(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connection = lamina_workflow.results(sent)
    names = relations(connection)
    assert {"main", "first", "my study", "studies"} == {name.split('"')[1] for name in names}
    counts = {
        name: connection.execute(f"SELECT count(*) FROM (FROM {name})").fetchall()[0][0]
        for name in names
    }
    assert (
        counts['"main".variants'] == counts['"my study".variants'] > counts['"first".variants'] > 10
    )
    assert counts['"studies".variants'] == counts['"main".variants'] + counts['"first".variants']
    views = connection.execute("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall()
    assert not [sql for (sql,) in views if "parquet" in sql]


def test_a_connection_answers_in_every_way_that_the_package_has(sent: Path) -> None:
    """An answer that was not fetched kept it busy, and `.sql` failed."""
    assert lamina_workflow.results(sent).sql("FROM variants").fetchall()
    assert len(lamina_workflow.results(sent).sql("FROM variants").df()) > 1
    assert len(lamina_workflow.results(sent).execute("FROM variants").df()) > 1
    assert lamina_workflow.results(sent).sql("FROM variants").to_arrow_table().num_rows > 1
    pytest.importorskip("polars", reason="polars is not installed: .pl() was not tried")
    assert lamina_workflow.results(sent).sql("FROM variants").pl().height > 1


def test_the_shell_reads_every_table_and_view_from_any_folder(sent: Path, tmp_path: Path) -> None:
    connection = lamina_workflow.results(sent)
    names = relations(connection)
    statements = [f"SELECT '{name}', count(*) FROM (FROM {name});" for name in names]
    counts = dict(shell(sent, "\n".join(statements), tmp_path))
    assert counts == {
        name: str(connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0])
        for name in names
    }


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.stem)
def test_package_and_shell_give_one_answer_to_a_query(
    query: Path, sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # where one query finds what papers report
    text = query.read_text(encoding="utf-8")
    expected = lamina_workflow.results(sent).execute(text).fetchall()
    answered = shell(sent, text, ROOT)
    assert len(answered) == len(expected)
    for shown, row in zip(answered, expected, strict=True):
        assert all(map(is_shown, shown, row)), (shown, row)


def is_shown(text: str, value: Any) -> bool:
    """Whether the shell's text is that of a value of the package; of lists each has its own way of writing."""
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, int | float):
        return bool(float(text) == pytest.approx(value, nan_ok=True))
    if isinstance(value, list | tuple):
        return True
    return text == ("" if value is None else value)


def shell(sent: Path, statements: str, folder: Path) -> list[list[str]]:
    """The rows that the shell prints, started in a folder."""
    command = [str(SHELL), "-readonly", "-csv", "-noheader", "-bail", "-nullvalue", ""]
    command.append(str(sent / "lamina.duckdb"))
    ran = subprocess.run(command, input=statements, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return list(csv.reader(io.StringIO(ran.stdout)))

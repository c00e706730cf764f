"""Questions are asked by name and answered with the rows of their queries, written for reading."""

import csv
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from lamina.errors import LaminaError
from lamina_workflow.report import answers, database, queries, shell
from tests import ROOT
from tests.given.plausible_tables import write_study, write_tables

QUERIES = ROOT / "sql/queries"
# A question whose answer is wider than a terminal.
WIDE_QUESTION = QUERIES / "what_pruning_costs.sql"
MORE_COLUMNS = "--wide shows more columns: "


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("study")
    files = write_study(
        folder, n_layers=6, calibrations=("recall", "facts"), sizes=(1, 2), n_test=40
    )
    with database.connect_views(files) as views:
        yield views


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12345.678, "12346"),
        (1234567, "1234567"),
        (None, ""),
        (True, "True"),
        ([1.23456, None], "[1.235, ]"),
        ("a|b", "a|b"),
        (2.0, "2"),
    ],
)
def test_numbers_are_rounded_for_reading_and_nothing_else_is(value: object, text: str) -> None:
    assert shell.format_value(value) == text


@pytest.fixture
def wide_rows(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, object]]:
    """The rows of the wide question; the shell asks the same study."""
    monkeypatch.setattr(shell, "QUERIES", QUERIES)
    monkeypatch.setattr(database, "open_database", lambda file: connection.cursor())
    return answers.query_rows(connection, WIDE_QUESTION.read_text(encoding="utf-8"))


def test_a_table_has_the_columns_that_fit_and_names_the_others(
    wide_rows: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    shell.main([str(WIDE_QUESTION)])

    lines = capsys.readouterr().out.splitlines()
    assert f"-- {lines[0]}" == WIDE_QUESTION.read_text(encoding="utf-8").splitlines()[0]
    assert all(len(line) <= 100 for line in lines[:-1])
    shown = lines[lines.index("") + 1].split()
    [left_out] = [line for line in lines if line.startswith(MORE_COLUMNS)]
    names = left_out.removeprefix(MORE_COLUMNS).removesuffix(".").split(", ")
    assert shown + names == list(wide_rows[0])


def test_a_wide_table_has_every_column(
    wide_rows: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    shell.main([str(WIDE_QUESTION), "--wide"])

    lines = capsys.readouterr().out.splitlines()
    first_table_line = lines.index("") + 1
    header, _, first_row = lines[first_table_line : first_table_line + 3]
    fraction = next(
        value
        for value in wide_rows[0].values()
        if isinstance(value, float) and 0 < value < 1 and len(str(value)) > 6
    )
    assert max(map(len, lines)) > 100
    assert header.split() == list(wide_rows[0])
    assert f"{fraction:.4g}" in first_row
    assert lines[-1] == f"({len(wide_rows)} rows)"


def test_the_answer_as_csv_has_every_column_and_row(
    wide_rows: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    shell.main([str(WIDE_QUESTION), "--csv"])

    header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert header == list(wide_rows[0])
    assert len(rows) == len(wide_rows)


def test_a_value_that_does_not_fit_is_cut(connection: duckdb.DuckDBPyConnection) -> None:
    answer = shell.format_answer(connection, f"SELECT '{'x' * 200}' AS long", 100)

    assert answer.splitlines()[2] == 99 * "x" + "…"


def test_a_question_is_found_by_name() -> None:
    file = shell.find_query("which_layers_matter")

    assert file == shell.QUERIES / "which_layers_matter.sql"


def test_an_unknown_question_is_refused_with_the_nearest_name() -> None:
    message = "no question 'which_layer_matters'. Did you mean 'which_layers_matter'"

    with pytest.raises(LaminaError, match=message):
        shell.find_query("which_layer_matters")


def test_a_missing_database_is_refused_with_the_command_that_makes_it() -> None:
    with pytest.raises(LaminaError, match="lamina run"):
        database.open_database("nowhere.duckdb")


def test_every_question_says_when_it_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # where the numbers of papers are
    with database.connect_views(write_tables(tmp_path)) as empty:
        for query in QUERIES.glob("*.sql"):
            answer = shell.format_answer(empty, query.read_text())

            reason = answer.splitlines()[-1]
            assert reason.startswith("Empty where "), query.stem
            assert reason.endswith("."), query.stem


def test_a_statement_of_the_users_own_is_answered_without_a_question() -> None:
    assert shell.format_answer(duckdb.connect(), "SELECT 1 AS n") == "n\n-\n1\n(1 rows)"


def test_without_a_question_the_shell_of_duckdb_opens_the_database(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    with duckdb.connect() as writer:
        file = tmp_path / "results/lamina.duckdb"
        writer.execute(f"ATTACH '{file}' AS run (STORAGE_VERSION 'v1.0.0')")
        writer.execute("CREATE VIEW run.models AS SELECT 41 + 1 AS n")
    command = [sys.executable, "-m", "lamina_workflow.report.shell"]
    statements = "SELECT n FROM models; CREATE TABLE more AS SELECT 1;"

    process = subprocess.run(
        command, input=statements, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert "42" in process.stdout
    assert "read-only" in process.stdout + process.stderr


def test_all_questions_are_listed_with_what_they_ask() -> None:
    lines = queries.list_questions()
    assert len(lines) == len(list((ROOT / "sql/queries").glob("*.sql")))
    (line,) = [line for line in lines if line.startswith("which_model_to_take ")]
    assert line.endswith("Which model should be taken?")

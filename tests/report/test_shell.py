"""Questions are asked by name, answers read well, and the page of questions is what the queries answer."""

import builtins
import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from lamina.errors import LaminaError
from lamina.report import database, shell
from tests.given.configurations import REPOSITORY
from tests.given.plausible_tables import write_study, write_tables

VIEWS, QUERIES = REPOSITORY / "sql/views.sql", REPOSITORY / "sql/queries"


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("study")
    with database.connect(
        VIEWS, write_study(folder, n_layers=6, calibrations=("recall", "facts"), sizes=(1, 2), n_test=40)
    ) as made:
        yield made


def test_numbers_are_rounded_for_reading_and_nothing_else_is() -> None:
    values = [0.123456, 12345.678, 1234567, None, True, [1.23456, None], "a|b", 2.0]
    assert "; ".join(map(shell.shown, values)) == "0.1235; 12346; 1234567; ; True; [1.235, ]; a|b; 2"


def test_a_table_has_the_columns_that_fit_and_names_the_others(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shell, "QUERIES", QUERIES)
    monkeypatch.setattr(database, "opened", lambda file: connection.cursor())
    name = str(QUERIES / "what_pruning_costs.sql")
    shell.main([name])
    cut = capsys.readouterr().out.splitlines()
    shell.main([name, "--wide"])
    wide = capsys.readouterr().out.splitlines()
    shell.main([name, "--csv"])
    names, *values = csv.reader(io.StringIO(capsys.readouterr().out))
    assert cut[0] == wide[0] == Path(name).read_text().splitlines()[0].removeprefix("-- ")
    said = next(line for line in cut if line.startswith("WIDE=1 shows more columns: "))
    table = cut[cut.index("") + 1 : -1]
    assert all(len(line) <= 100 for line in cut[:-1]) and max(map(len, wide)) > 100
    assert table[0].split() + said.removesuffix(".").split(": ")[1].split(", ") == names
    assert wide[wide.index("") + 1].split() == names and wide[-1] == f"({len(values)} rows)"
    value = next(text for text in values[0] if text.startswith("0.") and len(text) > 6)
    assert f"{float(value):.4g}" in wide[wide.index("") + 3]
    assert shell.answered(connection, f"SELECT '{'x' * 200}' AS long", 100).splitlines()[2] == 99 * "x" + "…"


def test_a_question_is_found_by_name_and_an_unknown_one_with_the_nearest() -> None:
    assert shell.query("which_layers_matter", QUERIES) == QUERIES / "which_layers_matter.sql"
    with pytest.raises(LaminaError, match="no question 'which_layer_matters'. Did you mean 'which_layers_matter'"):
        shell.query("which_layer_matters", QUERIES)
    with pytest.raises(LaminaError, match="make run"):
        database.opened("nowhere.duckdb")


def test_the_shell_answers_until_it_is_left_and_survives_mistakes(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["SELECT count(*)", "AS n FROM models;", "SELECT nope;", ".tables", ".query nope", ".help", ".quit"])
    monkeypatch.setattr(builtins, "input", lambda _: next(typed))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(shell, "QUERIES", QUERIES)
    shell.converse(connection)
    said = capsys.readouterr().out
    assert "n\n-\n1\n(1 rows)" in said and '"nope" was not found' in said and "no question 'nope'" in said
    assert "benchmark_samples" in said and said.count(".quit ends") == 2
    assert next(typed, None) is None


def test_every_question_says_when_it_has_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)  # one asks for what papers report, a file of the project
    with database.connect(VIEWS, write_tables(tmp_path)) as connection:
        for file in QUERIES.glob("*.sql"):
            *_, reason = shell.answered(connection, file.read_text()).splitlines()
            assert reason.startswith("Empty where ") and reason.endswith("."), file.stem
    assert shell.answered(duckdb.connect(), "SELECT 1 AS n") == "n\n-\n1\n(1 rows)"


def test_a_script_gets_answers_alone_and_ends_with_its_first_error(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT count(*) AS n\nFROM models;\nSELECT 2 AS two"))
    shell.converse(connection)
    assert capsys.readouterr().out == "n\n-\n1\n(1 rows)\ntwo\n---\n2\n(1 rows)\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT nope;\nSELECT 1;"))
    with pytest.raises(LaminaError, match="nope"):
        shell.converse(connection)


@pytest.mark.parametrize("end", ["quit", "exit;", ".quit", "QUIT"])
def test_words_of_other_shells_are_understood(
    end: str, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither becomes the beginning of the next statement."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"help\nSELECT 1 AS n;\n{end}\nSELECT nope;"))
    shell.converse(connection)
    assert capsys.readouterr().out == f"{shell.HELP}\nn\n-\n1\n(1 rows)\n"

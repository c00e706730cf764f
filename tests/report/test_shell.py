"""Questions are asked by name, answers read well, and the page of questions is what the queries answer."""

import csv
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from lamina.errors import LaminaError
from lamina_workflow.report import database, shell
from tests import ROOT
from tests.given.plausible_tables import write_study, write_tables

VIEWS, QUERIES = ROOT / "sql/views.sql", ROOT / "sql/queries"


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("study")
    with database.connect_views(
        VIEWS,
        write_study(folder, n_layers=6, calibrations=("recall", "facts"), sizes=(1, 2), n_test=40),
    ) as made:
        yield made


def test_numbers_are_rounded_for_reading_and_nothing_else_is() -> None:
    values = [0.123456, 12345.678, 1234567, None, True, [1.23456, None], "a|b", 2.0]
    assert (
        "; ".join(map(shell.format_value, values))
        == "0.1235; 12346; 1234567; ; True; [1.235, ]; a|b; 2"
    )


def test_a_table_has_the_columns_that_fit_and_names_the_others(
    connection: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shell, "QUERIES", QUERIES)
    monkeypatch.setattr(database, "open_database", lambda file: connection.cursor())
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
    assert (
        shell.format_answer(connection, f"SELECT '{'x' * 200}' AS long", 100).splitlines()[2]
        == 99 * "x" + "…"
    )


def test_a_question_is_found_by_name_and_an_unknown_one_with_the_nearest() -> None:
    assert shell.find_query("which_layers_matter", QUERIES) == QUERIES / "which_layers_matter.sql"
    with pytest.raises(
        LaminaError, match="no question 'which_layer_matters'. Did you mean 'which_layers_matter'"
    ):
        shell.find_query("which_layer_matters", QUERIES)
    with pytest.raises(LaminaError, match="make run"):
        database.open_database("nowhere.duckdb")


def test_every_question_says_when_it_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # one asks for what papers report, a file of the project
    with database.connect_views(VIEWS, write_tables(tmp_path)) as connection:
        for file in QUERIES.glob("*.sql"):
            *_, reason = shell.format_answer(connection, file.read_text()).splitlines()
            assert reason.startswith("Empty where ") and reason.endswith("."), file.stem
    assert shell.format_answer(duckdb.connect(), "SELECT 1 AS n") == "n\n-\n1\n(1 rows)"


def test_without_a_question_the_shell_of_duckdb_opens_the_database(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    with duckdb.connect() as made:
        made.execute(f"ATTACH '{tmp_path}/results/lamina.duckdb' AS it (STORAGE_VERSION 'v1.0.0')")
        made.execute("CREATE VIEW it.models AS SELECT 41 + 1 AS n")
    command = [sys.executable, "-m", "lamina_workflow.report.shell"]
    typed = "SELECT n FROM models; CREATE TABLE more AS SELECT 1;"
    ended = subprocess.run(command, input=typed, cwd=tmp_path, capture_output=True, text=True)
    assert "42" in ended.stdout and "read-only" in ended.stdout + ended.stderr

"""The database keeps the studies apart, and serves readers while a run makes tables anew."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.report import database
from tests.given.plausible_tables import write_study

DATABASE = "results/lamina.duckdb"
# By study: the sizes that it prunes to. A schema of the database is called `studies`.
SIZES = {"first": (1, 2), "second": (1,), "studies": (2,)}


@pytest.fixture(scope="module")
def study_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The tables of three studies, each as a run would leave it."""
    root = tmp_path_factory.mktemp("studies")
    return {
        study: write_study(
            root / study, n_layers=6, calibrations=("recall", "facts"), sizes=sizes, n_test=40
        )
        for study, sizes in SIZES.items()
    }


@pytest.fixture(scope="module")
def results_folder(
    study_files: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder whose database holds the three studies, `studies` built last."""
    folder = tmp_path_factory.mktemp("three")
    for study, files in study_files.items():
        database.build_database(files, folder / DATABASE, study)
    return folder


@pytest.fixture
def three_studies(results_folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(results_folder / DATABASE, read_only=True) as connection:
        yield connection


def count_file_rows(files: list[Path], table: str) -> int:
    [file] = [file for file in files if file.stem == table]
    return int(parquet.read_table(file).num_rows)


def query_number(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    [[number]] = connection.execute(sql).fetchall()
    return number


@pytest.mark.parametrize("table", ["benchmarks", "plans"])
def test_each_study_has_its_own_tables_and_the_last_is_the_main_one(
    study_files: dict[str, list[Path]], three_studies: duckdb.DuckDBPyConnection, table: str
) -> None:
    expected = {
        "first": count_file_rows(study_files["first"], table),
        "second": count_file_rows(study_files["second"], table),
        "studies_": count_file_rows(study_files["studies"], table),
    }

    counts = three_studies.execute(
        f"SELECT study, count(*) FROM studies.{table} GROUP BY ALL"
    ).fetchall()

    assert dict(counts) == expected
    for study, count in expected.items():
        assert query_number(three_studies, f'SELECT count(*) FROM "{study}".{table}') == count
    assert query_number(three_studies, f"SELECT count(*) FROM {table}") == expected["studies_"]


def test_a_derived_view_of_a_study_reads_the_tables_of_that_study(
    three_studies: duckdb.DuckDBPyConnection,
) -> None:
    sizes = three_studies.execute(
        "SELECT study, max(removed) FROM studies.scores GROUP BY study"
    ).fetchall()

    assert dict(sizes) == {"first": 2, "second": 1, "studies_": 2}


def test_every_schema_has_the_same_tables_and_views(
    three_studies: duckdb.DuckDBPyConnection,
) -> None:
    counts = three_studies.execute(
        """SELECT count(*) FROM information_schema.tables
        WHERE table_schema IN ('main', 'first', 'studies_', 'studies') GROUP BY table_schema"""
    ).fetchall()

    assert len(counts) == 4
    assert len(set(counts)) == 1


def test_every_column_over_all_studies_is_described(
    three_studies: duckdb.DuckDBPyConnection,
) -> None:
    undescribed = three_studies.execute(
        """SELECT table_name, column_name FROM duckdb_columns()
        WHERE NOT internal AND schema_name IN ('main', 'studies') AND coalesce(comment, '') = ''"""
    ).fetchall()

    assert undescribed == []


@pytest.fixture
def copied_results(results_folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder of three studies, to change."""
    return Path(shutil.copytree(results_folder, tmp_path / "copy"))


def test_a_study_that_is_run_again_replaces_its_own_rows_alone(
    study_files: dict[str, list[Path]], copied_results: Path
) -> None:
    database.build_database(study_files["second"], copied_results / DATABASE, "first")

    with duckdb.connect(copied_results / DATABASE, read_only=True) as connection:
        sizes = connection.execute(
            "SELECT DISTINCT study, removed FROM studies.plans ORDER BY ALL"
        ).fetchall()

    assert sizes == [("first", 1), ("second", 1), ("studies_", 2)]


def test_tables_of_an_earlier_version_keep_what_can_be_read(
    study_files: dict[str, list[Path]], copied_results: Path
) -> None:
    """The earlier version wrote `benchmarks` without a column, and no table `jobs`."""
    older = copied_results / "results/studies/second"
    benchmarks = parquet.read_table(older / "benchmarks.parquet")
    parquet.write_table(older / "benchmarks.parquet", benchmarks.drop_columns(["higher_is_better"]))
    (older / "jobs.parquet").unlink()
    database.build_database(study_files["first"], copied_results / DATABASE, "first")

    with duckdb.connect(copied_results / DATABASE, read_only=True) as connection:
        without_value = connection.execute(
            """SELECT study, bool_or(higher_is_better IS NULL) FROM studies.benchmarks
            GROUP BY study"""
        ).fetchall()
        scored = connection.execute("SELECT DISTINCT study FROM studies.scores").fetchall()

    assert dict(without_value) == {"first": False, "second": True, "studies_": False}
    assert set(scored) == {("first",), ("studies_",)}


class RunnerOfOneStudy:
    """Runs a study over and over: removes its tables, makes others, builds the database anew."""

    def __init__(self, folder: Path, study_files: dict[str, list[Path]]) -> None:
        self.folder = folder
        self.study_files = study_files

    def run(self, study: str) -> None:
        tables = self.folder / "results/tables"
        for file in tables.glob("*.parquet"):
            file.unlink()
        written = []
        for file in self.study_files[study]:
            written.append(tables / file.name)
            parquet.write_table(written[-1], parquet.read_table(file))
        database.build_database(written, self.folder / DATABASE, "mine")


@pytest.fixture
def runner(tmp_path: Path, study_files: dict[str, list[Path]]) -> RunnerOfOneStudy:
    runner = RunnerOfOneStudy(tmp_path, study_files)
    runner.run("first")
    return runner


def test_a_shell_that_stays_open_sees_the_study_that_it_opened(runner: RunnerOfOneStudy) -> None:
    with duckdb.connect(runner.folder / DATABASE, read_only=True) as shell:
        count_before = query_number(shell, "SELECT count(*) FROM scores")
        runner.run("second")
        count_after = query_number(shell, "SELECT count(*) FROM scores")

    assert count_after == count_before


@pytest.mark.slow
def test_a_reader_sees_a_whole_study_while_a_run_writes(
    runner: RunnerOfOneStudy, study_files: dict[str, list[Path]]
) -> None:
    plan_counts = {count_file_rows(study_files[study], "plans") for study in ("first", "second")}

    n_answers = 0
    for study in ("second", "first"):
        writer = threading.Thread(target=runner.run, args=[study])
        writer.start()
        while writer.is_alive():
            with duckdb.connect(runner.folder / DATABASE, read_only=True) as reader:
                assert query_number(reader, "SELECT count(*) FROM plans") in plan_counts
                assert query_number(reader, "SELECT count(*) FROM scores") > 0
            n_answers += 1
        writer.join()

    assert n_answers > 0
    studies = [folder.name for folder in (runner.folder / "results/studies").iterdir()]
    assert studies == ["mine"]


@pytest.mark.slow
def test_names_of_studies_are_neither_patterns_nor_partitions(
    study_files: dict[str, list[Path]], tmp_path: Path
) -> None:
    studies = {"mine[1]": "first", "mine1": "second", "lr=0.1": "studies", "a*{b,c}?": "first"}
    for name, study in studies.items():
        database.build_database(study_files[study], tmp_path / DATABASE, name)

    with database.open_database(tmp_path / DATABASE) as connection:
        sizes = connection.execute(
            "SELECT study, list(DISTINCT removed ORDER BY 1) FROM studies.plans GROUP BY ALL"
        ).fetchall()

    assert dict(sizes) == {
        "mine[1]": [1, 2],
        "mine1": [1],
        "lr=0.1": [2],
        "a*{b,c}?": [1, 2],
    }


HOLD_DATABASE_OPEN = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_database_that_another_program_writes_to_is_not_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "lamina.duckdb"
    command = [sys.executable, "-c", HOLD_DATABASE_OPEN, str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"

        with pytest.raises(
            LaminaError, match=r"lamina\.duckdb is held open for writing by another program"
        ):
            database.open_database(file)

        holder.communicate("")

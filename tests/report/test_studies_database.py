"""The database keeps the tables of every study apart, and serves readers while a run makes tables anew."""

import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.report import database
from tests.given.plausible_tables import VIEWS, write_study

SIZES = {"first": (1, 2), "second": (1,), "studies": (2,)}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The tables of three studies, each as a run would leave it."""
    root = tmp_path_factory.mktemp("made")
    return {
        name: write_study(
            root / name, n_layers=6, calibrations=("recall", "facts"), sizes=sizes, n_test=40
        )
        for name, sizes in SIZES.items()
    }


def test_studies_stand_side_by_side_and_the_last_is_the_main_one(
    tables: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, files in tables.items():
        database.build_database(VIEWS, files, "results/lamina.duckdb", name)
    counts = {
        name: {
            file.stem: parquet.read_table(file).num_rows
            for file in files
            if file.stem in ("benchmarks", "plans")
        }
        for name, files in tables.items()
    }
    with duckdb.connect("results/lamina.duckdb", read_only=True) as connection:
        for table in ("benchmarks", "plans"):
            found = dict(
                connection.execute(
                    f"SELECT study, count(*) FROM studies.{table} GROUP BY ALL"
                ).fetchall()
            )
            expected = {name: counts[name][table] for name in SIZES}
            expected["studies_"] = expected.pop("studies")  # a schema has that name
            assert found == expected
            for name, count in expected.items():
                assert connection.execute(f'SELECT count(*) FROM "{name}".{table}').fetchall() == [
                    (count,)
                ]
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [
                (counts["studies"][table],)
            ]
        # Derived views too, each from the tables of its own study.
        sizes = connection.execute(
            "SELECT study, max(removed) FROM studies.scores GROUP BY study ORDER BY study"
        )
        assert sizes.fetchall() == [("first", 2), ("second", 1), ("studies_", 2)]
        relations = "SELECT count(*) FROM information_schema.tables WHERE table_schema = ?"
        schemas = ("main", "first", "studies_", "studies")
        counts_of_schemas = {
            connection.execute(relations, [schema]).fetchall()[0] for schema in schemas
        }
        assert len(counts_of_schemas) == 1
        undescribed = connection.execute(
            """SELECT table_name, column_name FROM duckdb_columns()
            WHERE NOT internal AND schema_name IN ('main', 'studies') AND coalesce(comment, '') = ''"""
        )
        assert undescribed.fetchall() == []
    # What an earlier version wrote without some column, or table, keeps what can be read.
    older = Path("results/studies/second")
    names = [name for name in parquet.schema_of("benchmarks").names if name != "higher_is_better"]
    parquet.write_table(
        older / "benchmarks.parquet", parquet.read_table(older / "benchmarks.parquet").select(names)
    )
    (older / "jobs.parquet").unlink()
    # A study that is run again replaces its own rows alone.
    database.build_database(VIEWS, tables["second"], "results/lamina.duckdb", "first")
    with duckdb.connect("results/lamina.duckdb", read_only=True) as connection:
        found = connection.execute(
            "SELECT DISTINCT study, removed FROM studies.plans ORDER BY ALL"
        ).fetchall()
        measured = "SELECT study, bool_or(higher_is_better IS NULL) FROM studies.benchmarks GROUP BY ALL ORDER BY ALL"
        assert connection.execute(measured).fetchall() == [
            ("first", False),
            ("second", True),
            ("studies_", False),
        ]
        scored = connection.execute(
            "SELECT DISTINCT study FROM studies.scores ORDER BY study"
        ).fetchall()
    assert found == [("first", 1), ("second", 1), ("studies_", 2)] and scored == [
        ("first",),
        ("studies_",),
    ]


def test_who_reads_while_a_run_writes_sees_a_whole_study_at_all_times(
    tables: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run takes its tables away, makes others and builds the database anew, over and over."""
    monkeypatch.chdir(tmp_path)
    place = {file.stem: tmp_path / "results/tables" / file.name for file in tables["first"]}

    def run(name: str) -> None:
        for file in place.values():
            file.unlink(missing_ok=True)
        for file in tables[name]:
            parquet.write_table(place[file.stem], parquet.read_table(file))
        database.build_database(VIEWS, place.values(), "results/lamina.duckdb", "mine")

    run("first")
    known = {
        parquet.read_table(next(f for f in tables[name] if f.stem == "plans")).num_rows
        for name in ("first", "second")
    }
    with duckdb.connect(
        "results/lamina.duckdb", read_only=True
    ) as opened:  # as a shell that stays open
        before = opened.execute("SELECT count(*) FROM scores").fetchall()
        run("second")
        assert opened.execute("SELECT count(*) FROM scores").fetchall() == before
    answers = 0
    for name in ("first", "second"):
        writer = threading.Thread(target=run, args=[name])
        writer.start()
        while writer.is_alive():
            with duckdb.connect("results/lamina.duckdb", read_only=True) as fresh:
                assert fresh.execute("SELECT count(*) FROM plans").fetchall()[0][0] in known
                assert fresh.execute("SELECT count(*) FROM scores").fetchall()[0][0] > 0
            answers += 1
        writer.join()
    assert answers > 0
    assert [folder.name for folder in Path("results/studies").iterdir()] == ["mine"]


def test_names_of_studies_are_neither_patterns_nor_partitions(
    tables: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"mine[1]": "first", "mine1": "second", "lr=0.1": "studies", "a*{b,c}?": "first"}
    for name, study in names.items():
        database.build_database(VIEWS, tables[study], "results/lamina.duckdb", name)
    with database.open_database("results/lamina.duckdb") as connection:
        found = connection.execute(
            "SELECT study, list(DISTINCT removed ORDER BY 1) FROM studies.plans GROUP BY ALL"
        )
        assert dict(found.fetchall()) == {name: list(SIZES[study]) for name, study in names.items()}


def test_a_database_that_another_program_writes_to_is_not_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "lamina.duckdb"
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout and holder.stdout.readline() == "open\n"
        with pytest.raises(
            LaminaError, match=r"lamina.duckdb is held open for writing by another program"
        ):
            database.open_database(file)
        holder.communicate("")

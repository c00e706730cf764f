"""What only the workflow needs: the configuration of studies, its jobs, the report.

- `config`: the configuration of studies; `checks` holds its entries against each other and files,
- `study`: what a configuration asks for, as names and paths,
- `stages`: what a rule says of each of its jobs; `runtime`: how a job and a run go,
- `cost`: what a study will take,
- `report`: the database, the page and its figures,
- `cli`: the command, with `prune_study`: what `lamina prune` writes, and `commands`: what is done
  with one variant.

The methods are in `lamina`, which runs without this package.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

__all__ = ["results"]


def results(folder: str | Path = "results") -> "duckdb.DuckDBPyConnection":
    """The tables of a run (docs/tables.md) as a DuckDB connection, read-only.

    Raises LaminaError if the folder holds no database, or a damaged one.
    """
    # By name: the code digest of a figure would follow an import statement.
    database = import_module("lamina_workflow.report.database")
    connection: duckdb.DuckDBPyConnection = database.open_database(Path(folder) / "lamina.duckdb")
    return connection

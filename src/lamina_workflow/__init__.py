"""Everything that only the workflow needs: the configuration of studies, the jobs, the report.

- `config`: the configuration of studies; `checks` compares its entries with each other and files,
- `study`: what a configuration asks for, as names and paths,
- `stages`: the options and resources of each rule's jobs; `runtime`: how jobs and runs behave,
- `cost`: the cost of a study,
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
    # Imported by name: the code digest of a figure would follow an import statement.
    database = import_module("lamina_workflow.report.database")
    connection: duckdb.DuckDBPyConnection = database.open_database(Path(folder) / "lamina.duckdb")
    return connection

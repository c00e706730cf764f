"""The tables of a run, one module per stage: a `Table` under the name of the table in capitals."""

import hashlib
import importlib
import json
import pkgutil

from lamina.tables.columns import Table


def _collect_tables() -> dict[str, Table]:
    """The tables by their names, from all modules of this package."""
    tables = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for name, value in vars(module).items():
            if isinstance(value, Table):
                tables[name.lower()] = value
    return tables


TABLES: dict[str, Table] = _collect_tables()


def table_digest(*tables: str) -> str:
    """Hash of the grain and the columns of tables, with their descriptions."""
    described = [
        [name, TABLES[name].grain, list(TABLES[name].columns.items())] for name in sorted(tables)
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()

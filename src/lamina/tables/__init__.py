"""The tables of a run, one module per stage: a `Table` under the name of the table in capitals is one."""

import hashlib
import importlib
import json
import pkgutil

from lamina.tables.columns import Table

TABLES: dict[str, Table] = {
    name.lower(): value
    for _, module, _ in pkgutil.iter_modules(__path__)
    for name, value in vars(importlib.import_module(f"{__name__}.{module}")).items()
    if isinstance(value, Table)
}


def table_digest(*tables: str) -> str:
    """Hash of the grain and the columns of tables, with their descriptions."""
    described = [
        [name, TABLES[name].grain, list(TABLES[name].columns.items())] for name in sorted(tables)
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()

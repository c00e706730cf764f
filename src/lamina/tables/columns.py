"""What a table is, the types of its columns, and the key columns that tables share.

A description says what the column means, its unit or range, and when it is null; it is written nowhere else. The
comments of the database and docs/tables.md are made from it. Rules read the tables too, so types are names, of which
`lamina.store.parquet` makes Arrow types.
"""

Columns = dict[str, tuple[str, str]]
"""By name: type and description."""

STRING, INT, FLOAT, BOOL = "string", "int64", "double", "bool"
STRINGS = "list<string>"
CHANNELS = "list<float>"  # one number per channel of the stream, C of them, in single precision


class Table:
    """The schema of a table.

    Attributes
    ----------
    grain : what one row is.
    columns : the columns by name, keys first.
    """

    def __init__(self, grain: str, keys: Columns | None = None, **columns: tuple[str, str]) -> None:
        self.grain = grain
        self.columns: Columns = (keys or {}) | columns


MODEL: Columns = {"model": (STRING, "Name of the model in the configuration.")}
CALIBRATION: Columns = MODEL | {"calibration": (STRING, "Name of the calibration in the configuration.")}
SELECTION: Columns = CALIBRATION | {
    "selector": (STRING, "Name of the selector in the configuration."),
    "removed": (INT, "Size of the plan: number of units it removes."),
}
# A variant is spelled out in six columns.
VARIANT: Columns = MODEL | {
    "calibration": (STRING, "Calibration of the variant's plan and repairs; none for the base model."),
    "selector": (STRING, "Selector of the variant's plan; none for the base model."),
    "removed": (INT, "Size of the variant's plan: number of units removed; 0 for the base model."),
    "repair": (STRING, "Name of the repair; none without one."),
    "healing": (STRING, "Name of the healing; none without one."),
}
SWEPT: Columns = CALIBRATION | {
    "selector": (STRING, "Selector whose plan was applied before; base for the unpruned model, whose sweep is shared."),
    "removed": (INT, "Number of units that were gone already."),
}

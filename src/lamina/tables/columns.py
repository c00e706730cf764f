"""What a table is, and the key columns that tables share.

A description says what a column means, its unit or range, and when it is null. It is written
nowhere else: the comments of the database and docs/tables.md are made from it. Rules read the
tables too, so types are names here, of which `lamina.store.parquet` makes Arrow types.
"""

from typing import Literal, NamedTuple

# list<float> has one number per channel of the stream, in single precision.
ColumnType = Literal["bool", "int64", "double", "string", "list<string>", "list<float>"]


class Column(NamedTuple):
    """Type and meaning of one column."""

    type: ColumnType
    description: str


class Table(NamedTuple):
    """The schema of a table: what one row is (`grain`), and the columns by name, keys first."""

    grain: str
    columns: dict[str, Column]


MODEL_KEYS: dict[str, Column] = {
    "model": Column("string", "Name of the model in the configuration."),
}

CALIBRATION_KEYS: dict[str, Column] = {
    **MODEL_KEYS,
    "calibration": Column("string", "Name of the calibration in the configuration."),
}

SELECTION_KEYS: dict[str, Column] = {
    **CALIBRATION_KEYS,
    "selector": Column("string", "Name of the selector in the configuration."),
    "removed": Column(
        "int64",
        "Size of the plan: number of removed units minus number of repeated layers. At 0 the "
        "model has the same number of layers, repeated or reordered; below 0 it has more.",
    ),
}

# A variant is spelled out in six columns.
VARIANT_KEYS: dict[str, Column] = {
    **MODEL_KEYS,
    "calibration": Column(
        "string",
        "Calibration of the variant's plan and repairs; none for the base model.",
    ),
    "selector": Column("string", "Selector of the variant's plan; none for the base model."),
    "removed": Column(
        "int64",
        "Size of the variant's plan: number of removed units minus number of repeated layers. It "
        "is 0 for the base model and for a plan with the same number of layers, repeated or "
        "reordered; `selector` distinguishes them.",
    ),
    "repair": Column("string", "Name of the repair; none without one."),
    "healing": Column("string", "Name of the healing; none without one."),
}

SWEPT_KEYS: dict[str, Column] = {
    **CALIBRATION_KEYS,
    "selector": Column(
        "string",
        "Selector whose plan was applied before the sweep; base for the unpruned model, whose "
        "sweep is shared.",
    ),
    "removed": Column("int64", "Number of units removed before the sweep."),
}

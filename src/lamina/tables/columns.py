"""The common part of the schemas of tables: Arrow types, and the key columns with their descriptions.

A schema module holds `GRAIN`, what one row is, and `COLUMNS`, name -> (Arrow type, description). A description says
what the column means, its unit or range, and when it is null; it is written nowhere else. The comments of the database
and docs/tables.md are made from it.
"""

import pyarrow as pa

Columns = dict[str, tuple[pa.DataType, str]]

STRING, INT, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
CHANNELS = pa.list_(pa.float32())  # one number per channel of the stream, C of them

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

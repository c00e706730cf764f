"""What a table is, how it is written down, and the key columns that tables share.

A description says what the column means, its unit or range, and when it is null; it is written nowhere else. The
comments of the database and docs/tables.md are made from it. Rules read the tables too, so types are names, of which
`lamina.store.parquet` makes Arrow types: of `list<float>`, one number per channel of the stream, in single precision.
"""

import re
from typing import NamedTuple


class Columns(dict[str, tuple[str, str]]):
    """Type and description of columns by name."""

    def more(self, text: str) -> "Columns":
        """With the columns of a text: `task (string): Name of the task.`, one a line; long lines go on indented."""
        lines = re.sub(r"\n +", " ", text.strip()).splitlines()
        parts = (line.split(" ", 2) for line in lines)
        return Columns(
            self | {name: (kind.strip("():"), description) for name, kind, description in parts}
        )

    def table(self, text: str) -> "Table":
        """The table with these key columns, of whose grain, an empty line and other columns the text is."""
        grain, _, others = text.strip().partition("\n\n")
        return Table(grain.replace("\n", " "), self.more(others))


class Table(NamedTuple):
    """The schema of a table: what one row is (`grain`), and the columns by name, keys first."""

    grain: str
    columns: Columns


MODEL = Columns().more("model (string): Name of the model in the configuration.")
CALIBRATION = MODEL.more("calibration (string): Name of the calibration in the configuration.")
SELECTION = CALIBRATION.more("""
selector (string): Name of the selector in the configuration.
removed (int64): Size of the plan: number of units it removes.
""")
# A variant is spelled out in six columns.
VARIANT = MODEL.more("""
calibration (string): Calibration of the variant's plan and repairs; none for the base model.
selector (string): Selector of the variant's plan; none for the base model.
removed (int64): Size of the variant's plan: number of units removed; 0 for the base model.
repair (string): Name of the repair; none without one.
healing (string): Name of the healing; none without one.
""")
SWEPT = CALIBRATION.more("""
selector (string): Selector whose plan was applied before; base for the unpruned model, whose sweep is shared.
removed (int64): Number of units that were gone already.
""")

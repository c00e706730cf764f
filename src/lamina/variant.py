"""A variant: a base model with a plan of some size, a repair and a healing.

It is a name, not a checkpoint.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lamina.errors import LaminaError

FORM = "model/calibration/selector/removed=n/repair/healing"
# The possible forms of its export.
EXPORTED_AS = ("auto", "stock", "code", "gguf")

_PATTERN = re.compile(r"([^/]+)/([^/]+)/([^/]+)/removed=(-?\d+)/([^/]+)/([^/]+)")


@dataclass(frozen=True, order=True)
class Variant:
    """Names of the configuration, and the size of the selector's plan.

    They are the key of most tables, in this order. The base model has `none` for every name except
    the model, and size 0.
    """

    model: str
    calibration: str
    selector: str
    removed: int
    """The size of the plan: removed units minus layers that run again."""
    repair: str = "none"
    healing: str = "none"

    @classmethod
    def base(cls, model: str) -> "Variant":
        """The base model."""
        return cls(model, "none", "none", 0)

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """Read the text that `str` writes.

        Raises LaminaError if the text has another form.
        """
        match = _PATTERN.fullmatch(text.strip("/"))
        if match is None:
            raise LaminaError(f"'{text}' is not a variant: {_describe_fault(text)}. Write {FORM}.")
        model, calibration, selector, removed, repair, healing = match.groups()
        return cls(model, calibration, selector, int(removed), repair, healing)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Variant":
        """The variant of a table's row, or of wildcards, whose values are text."""
        values = {name: row[name] for name in cls.__dataclass_fields__}
        return cls(**values | {"removed": int(row["removed"])})

    def __str__(self) -> str:
        return f"{self.key}/removed={self.removed}/{self.repair}/{self.healing}"

    @property
    def is_base(self) -> bool:
        """Whether this is the base model."""
        return self.selector == "none"

    @property
    def key(self) -> str:
        """The key of a plan: `model/calibration/selector`."""
        return f"{self.model}/{self.calibration}/{self.selector}"

    def row(self) -> dict[str, Any]:
        """The key columns of the tables."""
        return asdict(self)


def describe_size(removed: int) -> str:
    """The size of a plan in words.

    >>> describe_size(3), describe_size(0), describe_size(-2)
    ('3 removed', 'as many layers', '2 layers more')
    """
    if removed > 0:
        return f"{removed} removed"
    if removed == 0:
        return "as many layers"
    return f"{-removed} layer{'s' if removed < -1 else ''} more"


def _describe_fault(text: str) -> str:
    """The reason why a text is not a variant."""
    parts = text.strip("/").split("/")
    names = FORM.split("/")
    if len(parts) != len(names):
        plural = "s" if len(parts) > 1 else ""
        return f"it has {len(parts)} part{plural}, not {len(names)}"
    if "" in parts:
        return f"its {names[parts.index('')]} is empty"
    return f"its part '{parts[3]}' is not removed=n, with a number for n"

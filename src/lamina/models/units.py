"""The names of units: `"7"` is a layer, `"7.attention"` and `"7.mlp"` are its halves.

The number of a layer is its number in the base model. `"7.@math"` takes nothing out: layer 7 of the model `math` takes
the place of the model's own (`lamina.models.replacements`).
"""

from collections.abc import Sequence

from lamina.errors import LaminaError

COMPONENTS = ("layer", "attention", "mlp")


def parse(unit: str) -> tuple[int, str]:
    """Layer number and component of a unit.

    >>> parse("7"), parse("7.mlp")
    ((7, 'layer'), (7, 'mlp'))

    Raises LaminaError if the text is not a unit.
    """
    number, _, component = str(unit).partition(".")
    component = component or "layer"
    if not number.isdigit() or not (
        component in COMPONENTS or component[1:] and component.startswith("@")
    ):
        raise LaminaError(
            f"'{unit}' is not a unit. Write a layer '7', or '7.attention', or '7.mlp'."
        )
    return int(number), component


def replacement(unit: str) -> str:
    """The name of the model whose layer a unit puts in; empty for a unit that is removed."""
    return unit.partition(".@")[2]


def replaced(unit: str, name: str) -> str:
    """The unit that puts a layer of another model in the place of the layer `unit`."""
    return f"{unit}.@{name}"


def all_units(n_layers: int, kind: str, removed: Sequence[str] = ()) -> list[str]:
    """Units of one kind that are still there, from the first layer on; of kind `both` the two halves of each layer."""
    suffixes = {"layer": ("",), "both": (".attention", ".mlp")}.get(kind, (f".{kind}",))
    units = [f"{layer}{suffix}" for layer in range(n_layers) for suffix in suffixes]
    return [unit for unit in units if unit not in removed]

"""The names of units: `"7"` is a layer, `"7.attention"` and `"7.mlp"` are its sub-layers.

Layers are numbered as in the base model. `"7.@math"` removes nothing: layer 7 of the model `math`
replaces layer 7 of the base model (`lamina.models.replacements`).
"""

from collections.abc import Iterable, Sequence

from lamina.errors import LaminaError

COMPONENTS = ("layer", "attention", "mlp")


def parse_unit(unit: str) -> tuple[int, str]:
    """Layer index and component of a unit; the component of `"7.@math"` is `"@math"`.

    >>> parse_unit("7"), parse_unit("7.mlp")
    ((7, 'layer'), (7, 'mlp'))

    Raises LaminaError if the text is not a unit.
    """
    layer_index, _, component = str(unit).partition(".")
    component = component or "layer"
    names_donor = component.startswith("@") and component != "@"
    if not layer_index.isdigit() or not (component in COMPONENTS or names_donor):
        raise LaminaError(
            f"'{unit}' is not a unit. Write a layer '7', or '7.attention', or '7.mlp'."
        )
    return int(layer_index), component


def donor_of(unit: str) -> str:
    """The name of the donor whose layer a unit brings in; empty for a unit that is removed."""
    return unit.partition(".@")[2]


def replacement_unit(layer_unit: str, donor: str) -> str:
    """The unit that replaces a layer by the same layer of a donor.

    >>> replacement_unit("7", "math")
    '7.@math'
    """
    return f"{layer_unit}.@{donor}"


def all_units(n_layers: int, kind: str, removed: Sequence[str] = ()) -> list[str]:
    """The units of one kind that are not removed, from the first layer on.

    kind: `layer`, `attention`, `mlp`, or `both` for the two sub-layers of each layer.
    """
    units = units_of_layers(range(n_layers), n_layers, kind)
    return [unit for unit in units if unit not in removed]


def units_of_layers(layers: Iterable[int], n_layers: int, kind: str) -> list[str]:
    """The units of one kind in these layers, in their order.

    layers: Negative ones are counted from the end.

    >>> units_of_layers([4, -1], 6, "both")
    ['4.attention', '4.mlp', '5.attention', '5.mlp']
    """
    suffixes = {"layer": ("",), "both": (".attention", ".mlp")}.get(kind, (f".{kind}",))
    return [f"{layer % n_layers}{suffix}" for layer in layers for suffix in suffixes]

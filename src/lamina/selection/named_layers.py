"""Check the layers that a selector names by number: protected ones, and given sets."""

from collections.abc import Sequence

from lamina.errors import LaminaError
from lamina.models.units import check_edits
from lamina.options.selectors import Selector


def check_named_layers(name: str, selector: Selector, model: str, n_layers: int) -> None:
    """Refuse layers by number that the model lacks, or that are named or changed twice.

    name, model: The names of the selector and of the model.

    Raises LaminaError; its message names the key.
    """
    _check_layers(f"selectors.{name}.protect", selector.protect, model, n_layers)
    named_sets = {"layers": selector.layers}
    named_sets |= {f"sets.{number}": layers for number, layers in enumerate(selector.sets)}
    protected = {index % n_layers for index in selector.protect}
    for key, layers in named_sets.items():
        entry_key = f"selectors.{name}.{key}"
        _check_layers(entry_key, layers, model, n_layers)
        for place, index in enumerate(layers):
            others = {other % n_layers for other in layers[:place]}
            if index % n_layers in others | protected:
                raise LaminaError(
                    f"{entry_key}: {index} is named twice, or is protected. Name each layer to "
                    "remove once, and leave it out of `protect`."
                )
    removed = [str(index % n_layers) for index in selector.layers]
    try:
        check_edits([*removed, *selector.edits], n_layers)
    except LaminaError as error:
        raise LaminaError(f"selectors.{name}.edits: {error}") from error


def _check_layers(entry_key: str, layers: Sequence[int], model: str, n_layers: int) -> None:
    """Refuse layers that the model does not have."""
    for index in layers:
        if not -n_layers <= index < n_layers:
            raise LaminaError(
                f"{entry_key}: {index} is not a layer of '{model}', which has {n_layers} layers. "
                f"Write 0 to {n_layers - 1}, or -1 to -{n_layers} to count from the end."
            )

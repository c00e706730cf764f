"""Renders the recipe with which mergekit makes the same cut as an export."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from lamina.models.export.card import Facts
from lamina.models.gguf import is_gguf
from lamina.models.units import Visit


def render_recipe(facts: Facts, silenced_weights: Mapping[int, Sequence[str]]) -> str:
    """The passthrough recipe for the plan alone.

    silenced_weights: by layer, parts of the names of the weights in its removed sub-layers, which
        the recipe scales to zero.
    """
    recipe: dict[str, Any] = {
        "merge_method": "passthrough",
        "slices": _list_slices(facts, silenced_weights),
    }
    if facts.manifest["dtype"] != "auto":
        recipe["dtype"] = facts.manifest["dtype"]
    comments = "".join(f"# {note}\n" for note in _list_notes(facts))
    return comments + yaml.safe_dump(recipe, sort_keys=False)


def _list_slices(
    facts: Facts, silenced_weights: Mapping[int, Sequence[str]]
) -> list[dict[str, Any]]:
    """The layers that run, as slices; unscaled neighbours from one model share a slice.

    A `layer_range` is in base numbering and half-open.
    """
    sources: list[dict[str, Any]] = []
    for visit in facts.visits:
        layer = visit.layer
        model = _locate_model(_model_of_layer(facts, visit))
        filters = silenced_weights.get(layer, ())
        previous = sources[-1] if sources else None
        if not filters and previous is not None and _is_continued(previous, model, layer):
            previous["layer_range"][1] = layer + 1
            continue
        source: dict[str, Any] = {"model": model, "layer_range": [layer, layer + 1]}
        if filters:
            scales: list[dict[str, Any]] = [{"filter": name, "value": 0.0} for name in filters]
            scales.append({"value": 1.0})
            source["parameters"] = {"scale": scales}
        sources.append(source)
    return [{"sources": [source]} for source in sources]


def _is_continued(previous: Mapping[str, Any], model: str, layer: int) -> bool:
    """Whether an unscaled layer of a model follows directly on the layers of the previous slice."""
    if "parameters" in previous or previous["model"] != model:
        return False
    return bool(previous["layer_range"][1] == layer)


def _model_of_layer(facts: Facts, visit: Visit) -> Mapping[str, Any]:
    """The model that a layer is copied from."""
    if not visit.donor:
        return facts.manifest
    donor: Mapping[str, Any] = facts.plan["replacements"][visit.donor]
    return donor


def _locate_model(model: Mapping[str, Any]) -> str:
    """A model as mergekit takes it: a hub id with its revision, or a folder."""
    if model.get("revision"):
        location = f"{model['source']}@{model['revision']}"
    else:
        location = str(model["source"])
    if is_gguf(location):
        return str(model["path"])  # the checkpoint that the file became
    return location


def _list_notes(facts: Facts) -> list[str]:
    notes = [f"The plan of {facts.variant} for mergekit: mergekit-yaml mergekit.yaml FOLDER"]
    if facts.has_patches or facts.variant.healing != "none":
        notes.append(
            "It makes the cut alone. This export also holds what repairs it, which mergekit does "
            "not know."
        )
    if facts.has_damped_layers:
        notes.append("It does not damp the layers that run again.")
    notes.append(
        "mergekit copies lists with one entry per layer (layer_types) as they are: change them in "
        "config.json."
    )
    return notes

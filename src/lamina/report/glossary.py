"""The meaning of the names in a configuration, in words made from its entries, for readers who did not write it."""

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from lamina.config.configuration import Configuration
from lamina.config.entry import Choice
from lamina.config.metrics import METRICS
from lamina.config.repairs import OWN
from lamina.config.selectors import Selector
from lamina.config.studies import Prune

# Keys that `words` describes in sentences, or by the first sentence of the class.
_UNLISTED = ("metric", "repair", "also", "data", "donors", "method", "strategy")


def glossary(config: Configuration) -> dict[str, dict[str, str]]:
    """What each name that studies list does, by section (`selectors`, `repairs`, `healings`); in half a sentence, how
    each selector chooses (`chosen`); and the repairs whose variants other programs can load (`stock`).
    """
    prune = [study for study in config.studies.values() if isinstance(study, Prune)]
    picked = list(dict.fromkeys(name for study in prune for name in study.selectors))
    in_loop = [name for selector in picked if (name := config.selectors[selector].repair)]
    listed = {
        "selectors": picked,
        "repairs": [*(name for study in prune for name in study.repairs), *in_loop],
        "healings": [name for study in prune for name in study.healings],
    }
    entries = {section: getattr(config, section) for section in listed}
    meanings = {
        section: {
            name: words(entries[section][name]) for name in dict.fromkeys(names) if name != "none"
        }
        for section, names in listed.items()
    }
    meanings["chosen"] = {name: chosen(config.selectors[name]) for name in meanings["selectors"]}
    # An export has a class of transformers where no map of the stream is left beside its layers.
    meanings["stock"] = {
        name: "stock" for name in meanings["repairs"] if not config.repairs[name].LINEAR
    }
    return meanings


def chosen(selector: Selector) -> str:
    """How a selector chooses, in half a sentence."""
    metric, repair = getattr(selector, "metric", None), getattr(selector, "repair", None)
    how = f"by {metric} ({selector.strategy})" if metric else f"by strategy {selector.strategy}"
    return f"chosen {how}" + (f" with {repair} in place" if repair else "")


def words(entry: Choice) -> str:
    """The first sentence of its class, then its options that differ from the defaults."""
    sentences = [_first_sentence(type(entry))]
    given = entry.options()
    if metric := getattr(entry, "metric", None):
        sentences.append(f"Units are compared by {metric}: {METRICS[metric].help}.")
    if repair := given.get("repair"):
        sentences.append(f"While units are scored, {repair} is in place.")
    if donors := given.get("donors"):
        sentences.append(
            f"Layers of {' and '.join(donors)} may take the places of layers that stay."
        )
    if also := given.get("also"):
        sentences.append(f"They are scored on {_weighed(also)} as well.")
    if isinstance(data := given.get("data"), dict):
        sentences.append(f"Fitted on {_weighed(data)}.")
    rest = [f"{key} {_shown(value)}" for key, value in given.items() if key not in _UNLISTED]
    return " ".join([*sentences, *([f"Options: {', '.join(rest)}."] if rest else [])])


def _first_sentence(model: type) -> str:
    text = " ".join((inspect.getdoc(model) or "").split("\n\n")[0].split())
    match = re.match(r".*?\.(?=\s|$)", text)
    return match[0] if match else text


def _weighed(weights: Mapping[str, Any]) -> str:
    names = {OWN: "the plan's own calibration"}
    return " and ".join(
        f"{names.get(name, name)} (weight {_shown(weight)})" for name, weight in weights.items()
    )


def _shown(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else json.dumps(value)
    )

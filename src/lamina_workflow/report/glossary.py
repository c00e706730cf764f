"""Explain the names in a configuration to readers of the report who did not write it.

The text comes from the entries: the first sentence of the class, then the options.
"""

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lamina.options.entry import Choice
from lamina.options.metrics import METRICS
from lamina.options.repairs import OWN
from lamina.options.selectors import Selector
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Prune

# Keys with a sentence of their own, and those that the first sentence of the class covers.
_DESCRIBED_KEYS = ("metric", "repair", "also", "data", "donors", "method", "strategy")


def build_glossary(config: Configuration) -> dict[str, dict[str, str]]:
    """The meaning of each name in the studies, by section: `selectors`, `repairs`, `healings`.

    Section `chosen` has half a sentence on how each selector chooses. The keys of section `stock`
    are the repairs whose variants other programs can load.
    """
    prune_studies = [study for study in config.studies.values() if isinstance(study, Prune)]
    selectors = [name for study in prune_studies for name in study.selectors]
    repairs = [name for study in prune_studies for name in study.repairs]
    repairs_in_loop = [config.selectors[selector].repair for selector in selectors]
    repairs += [name for name in repairs_in_loop if name]
    healings = [name for study in prune_studies for name in study.healings]
    return {
        "selectors": _describe_entries(config.selectors, selectors),
        "repairs": _describe_entries(config.repairs, repairs),
        "healings": _describe_entries(config.healings, healings),
        "chosen": {name: describe_choice(config.selectors[name]) for name in selectors},
        "stock": {name: "stock" for name in repairs if _exports_as_stock(config, name)},
    }


def _describe_entries(entries: Mapping[str, Choice], names: Iterable[str]) -> dict[str, str]:
    return {name: describe_entry(entries[name]) for name in names if name != "none"}


def _exports_as_stock(config: Configuration, repair: str) -> bool:
    """Whether an export loads as a standard transformers class: it contains no patch."""
    return repair != "none" and not config.repairs[repair].LINEAR


def describe_choice(selector: Selector) -> str:
    """How a selector chooses, in half a sentence."""
    metric = getattr(selector, "metric", None)
    repair = getattr(selector, "repair", None)
    words = f"chosen by strategy {selector.strategy}"
    if metric:
        words = f"chosen by {metric} ({selector.strategy})"
    if repair:
        words += f" with {repair} in place"
    return words


def describe_entry(entry: Choice) -> str:
    """The first sentence of the entry's class, then its options that differ from the defaults."""
    options = entry.options()
    sentences = [_read_first_sentence(type(entry))]
    metric = getattr(entry, "metric", None)
    if metric:
        sentences.append(f"Units are compared by {metric}: {METRICS[metric].help}.")
    if options.get("repair"):
        sentences.append(f"Repair {options['repair']} is in place while units are scored.")
    if options.get("donors"):
        donors = " and ".join(options["donors"])
        sentences.append(f"Layers of {donors} may replace layers that are not removed.")
    if options.get("also"):
        sentences.append(f"They are also scored on {_list_weights(options['also'])}.")
    if isinstance(options.get("data"), dict):
        sentences.append(f"Fitted on {_list_weights(options['data'])}.")

    other_options = [
        f"{key} {_format_value(value)}"
        for key, value in options.items()
        if key not in _DESCRIBED_KEYS
    ]
    if other_options:
        sentences.append(f"Options: {', '.join(other_options)}.")
    return " ".join(sentences)


def _read_first_sentence(documented: type) -> str:
    """The first sentence of a class's docstring."""
    first_paragraph = (inspect.getdoc(documented) or "").split("\n\n")[0]
    text = " ".join(first_paragraph.split())
    match = re.match(r".*?\.(?=\s|$)", text)
    return match[0] if match else text


def _list_weights(weights: Mapping[str, Any]) -> str:
    """`facts (weight 1) and prose (weight 0.1)`."""
    own_name = {OWN: "the plan's own calibration"}
    return " and ".join(
        f"{own_name.get(name, name)} (weight {_format_value(weight)})"
        for name, weight in weights.items()
    )


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)

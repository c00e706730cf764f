"""Files written from the classes of the configuration: its README and the schema for editors.

`PYTHONPATH=src python tools/config_pages.py` writes them anew; a test fails when they are out of date.
"""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

from lamina.options.entry import Choice, Entry
from lamina.options.explain import describe_allowed, entry_class_of
from lamina.options.metrics import METRICS
from lamina_workflow.config.configuration import Configuration

REPOSITORY = Path(__file__).resolve().parents[1]
README = REPOSITORY / "config/README.md"
SCHEMA = REPOSITORY / "workflow/schemas/config.schema.json"

_FIRST = "\n## Sections\n"  # what stands above it is written by hand
_METRICS = """\
Metrics differ in cost. A `weights` pass only reads the weights, `stream` is one forward pass, and `gradient` is two
backward passes. `removal` is a sweep that removes every unit in turn; it measures all stream metrics too. A `generate`
pass generates the answers to all questions, with a KV cache, for every removal; it takes much longer.
docs/choose.md has every metric's formula and source.

| metric | pass | relevance of a unit |
|---|---|---|
"""


def parts(model: type[Entry] = Configuration, place: str = "") -> Iterator[tuple[str, type[Entry]]]:
    """Dotted place and class of every entry, in the order of the keys; for a choice, its base class."""
    yield place, model
    for key, field in model.model_fields.items():
        if entry := entry_class_of(field.annotation):
            name = ".NAME" if get_origin(field.annotation) is dict else ""
            yield from parts(entry, f"{place}.{key}{name}".lstrip("."))


def readme() -> str:
    """The text of config/README.md: what stands there by hand above the sections, and a section for each class."""
    by_hand = README.read_text(encoding="utf-8").partition(_FIRST)[0]
    return by_hand + "".join(_section(place, model) for place, model in parts())


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration, without the titles that pydantic makes from names."""
    opening = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lamina configuration",
    }
    return opening | _untitled(Configuration.model_json_schema())


def as_json(value: Any) -> str:
    """JSON text in the form that the repository keeps."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _section(place: str, model: type[Entry]) -> str:
    text = f"\n## {place or 'Sections'}\n\n{inspect.getdoc(model)}\n\n{_table(model, list(model.model_fields))}"
    if place.startswith("selectors"):
        rows = [
            f"| `{metric.name}` | `{metric.pass_}` | {metric.help} |\n"
            for metric in METRICS.values()
        ]
        text += "\n" + _METRICS + "".join(rows)
    for leaf in model.kinds() if issubclass(model, Choice) else ():
        title = f"{leaf.BY}: {leaf.title()}" if leaf.BY else " and ".join(leaf.MARKS)
        own = [key for key in leaf.model_fields if key not in model.model_fields]
        text += f"\n### {title}\n\n{inspect.getdoc(leaf)}\n" + (
            f"\n{_table(leaf, own)}" if own else ""
        )
    return text


def _table(model: type[Entry], keys: list[str]) -> str:
    # A base class has its own keys, though as a schema it is a choice.
    schemas = [kind.model_json_schema()["properties"] for kind in model.kinds() or [model]]
    properties = {key: part for each in reversed(schemas) for key, part in each.items()}
    rows = ["| key | may be | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        field, rule = model.model_fields[key], properties[key]
        kind = "see below" if entry_class_of(field.annotation) else describe_allowed(rule)
        shown = "{}" if isinstance(usual := rule.get("default"), dict) else usual
        shown = shown if isinstance(shown, str) else json.dumps(shown)
        default = "*needed*" if field.is_required() else rule.get("x-default") or f"`{shown}`"
        if issubclass(model, Choice) and key == model.BY:
            kind = describe_allowed({"enum": [leaf.title() for leaf in model.kinds()]})
            default = f"`{model.USUAL}`" if model.USUAL else "*needed*"
        rows.append(f"| `{key}` | {kind} | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def _untitled(part: Any) -> Any:
    """A schema without the titles that pydantic makes from names."""
    if isinstance(part, list):
        return [_untitled(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {key: _untitled(value) for key, value in part.items() if key != "title"}


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
    SCHEMA.parent.mkdir(exist_ok=True)
    SCHEMA.write_text(as_json(schema()), encoding="utf-8")

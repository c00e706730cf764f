"""Files written from the classes of the configuration: its README and the schema for editors.

`python -m lamina.config.document` writes them anew; a test fails when they are out of date.
"""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lamina.config.configuration import Configuration
from lamina.config.entry import Choice, Entry
from lamina.config.explain import allowed, by_name, inside
from lamina.config.metrics import METRICS

REPOSITORY = Path(__file__).resolve().parents[3]
README = REPOSITORY / "config/README.md"
SCHEMA = REPOSITORY / "workflow/schemas/config.schema.json"

_HEAD = """\
# Configuration

A configuration names things (models, calibrations, selectors, repairs, healings, diagnoses, benchmarks) and then
the studies that combine them. Run one with `snakemake --cores 2 --configfile config/NAME.yaml`; without `--configfile`
it is `config.yaml`.

| file | study |
|---|---|
| `config.yaml` | the embedded reference model on its own tasks: no download, no GPU |
| `complete.yaml` | every method on the embedded model, at more sizes: what does not fit into a first look |
| `smollm2.yaml`, `smollm2-local.yaml` | a real model of 135 million parameters, from the hub or from local files |
| `smollm2-power.yaml` | what its layers are worth by all test questions, and which metric tells so from a few |
| `smollm2-sets.yaml` | which metric chooses the best five and seven layers of it from 400 questions |
| `smollm2-papers.yaml` | what three papers say of large models, asked of it: selections, repairs, fine-tunes |
| `tinystories.yaml` | a template for models and texts of your own |
| `papers/rethinking-layer-relevance.yaml` | those of arXiv 2605.14075: LLaMA-3-8B and others, every kind of study |
| `papers/deeper-layers.yaml` | those of arXiv 2403.17887: blocks by angle and the deepest layers, healed and not |
| `papers/ghosted-layers.yaml` | those of arXiv 2605.15491: repairs side by side |
| `papers/minitron.yaml` | arXiv 2408.11796 in small: a third of the embedded model goes, the rest is distilled |
| `reference.yaml`, `siblings.yaml` | how the embedded reference model and its siblings are trained; no studies |

Names are yours: letters, digits and `_ . + -`. `base` and `none` are taken. Paths count from the folder the run is
started in, and `~` is your home.

A configuration is checked before anything runs, with all that it and local files can tell. An unknown key, a name that
is not defined, a file that is not there or whose lines are no texts or questions, more documents than it holds, more
tokens than a model's context, or more layers to remove than it can spare stops the run with a message that says what to
write instead.

Single values can be replaced on the command line; what is not named there stays:

```
snakemake --cores 2 --configfile config/tinystories.yaml --config 'models={stories: {source: /data/my_model}}'
```

A changed value reruns the jobs that read it and nothing else. An added model, calibration or task only adds jobs.

In the tables below NAME is a name of yours, and a default of *needed* means that the key must be there. This page is
written from `src/lamina/config` by `python -m lamina.config.document`; editors that know JSON schemas find the same in
`workflow/schemas/config.schema.json`.
"""
_METRICS = """\
Metrics differ in cost: a `weights` pass only reads the weights, `stream` is one forward pass, `gradient` two backward
passes, and `removal` a sweep that removes every unit in turn; it then holds all stream metrics too.
docs/choose.md has every metric's formula and source.

| metric | pass | relevance of a unit |
|---|---|---|
"""


class Part(NamedTuple):
    """A class of the configuration and its dotted place."""

    place: str
    model: type[Entry]


def parts(model: type[Entry] = Configuration, place: str = "") -> Iterator[Part]:
    """Every class of the configuration in the order of the keys; for a choice, its base class."""
    yield Part(place, model)
    for key, field in model.model_fields.items():
        if entry := inside(field.annotation):
            name = ".NAME" if by_name(field.annotation) else ""
            yield from parts(entry, f"{place}.{key}{name}".lstrip("."))


def leaves(model: type[Entry]) -> list[type[Entry]]:
    """The classes that an entry of a class may have."""
    kinds: list[type[Entry]] = [*model.kinds()] if issubclass(model, Choice) else []
    return kinds or [model]


def readme() -> str:
    """The text of config/README.md."""
    return _HEAD + "".join(_section(part) for part in parts())


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration, without the titles that pydantic makes from names."""
    opening = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "lamina configuration"}
    return opening | _untitled(Configuration.model_json_schema())


def as_json(value: Any) -> str:
    """JSON text in the form that the repository keeps."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _section(part: Part) -> str:
    model = part.model
    text = f"\n## {part.place or 'Sections'}\n\n{inspect.getdoc(model)}\n\n{_table(model, list(model.model_fields))}"
    if part.place.startswith("selectors"):
        rows = [f"| `{metric.name}` | `{metric.pass_}` | {metric.help} |\n" for metric in METRICS.values()]
        text += "\n" + _METRICS + "".join(rows)
    for leaf in model.kinds() if issubclass(model, Choice) else []:
        title = f"{leaf.BY}: {leaf.title()}" if leaf.BY else " and ".join(leaf.MARKS)
        own = [key for key in leaf.model_fields if key not in model.model_fields]
        text += f"\n### {title}\n\n{inspect.getdoc(leaf)}\n" + (f"\n{_table(leaf, own)}" if own else "")
    return text


def _table(model: type[Entry], keys: list[str]) -> str:
    properties = _properties(model)
    rows = ["| key | may be | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        field, rule = model.model_fields[key], properties[key]
        kind = "see below" if inside(field.annotation) else allowed(rule)
        default = "*needed*" if field.is_required() else rule.get("x-default") or f"`{_shown(rule['default'])}`"
        if issubclass(model, Choice) and key == model.BY:
            kind = allowed({"enum": [leaf.title() for leaf in model.kinds()]})
        rows.append(f"| `{key}` | {kind} | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def _properties(model: type[Entry]) -> dict[str, Any]:
    """The JSON schemas of the keys; a base class has its own keys, though as a schema it is a choice."""
    schemas = [kind.model_json_schema()["properties"] for kind in leaves(model)]
    return {key: part for properties in reversed(schemas) for key, part in properties.items()}


def _shown(default: Any) -> str:
    return "{}" if isinstance(default, dict) else default if isinstance(default, str) else json.dumps(default)


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

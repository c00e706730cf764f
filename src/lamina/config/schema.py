"""Validation of a configuration against its JSON schema, in the words of the person who wrote it.

jsonschema judges single values. The walk around it is ours, since it has to fill defaults, find the nearest valid key,
and tell which of several forms of an entry was meant.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from lamina.errors import LaminaError

SCHEMA_FILE = Path(__file__).resolve().parents[3] / "workflow" / "schemas" / "config.schema.yaml"
RESERVED = ("base", "none")

_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ARTICLES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list such as [a, b]",
    "object": "a mapping of keys to values",
    "null": "null",
}

Schema = Mapping[str, Any]


@cache
def schema() -> dict[str, Any]:
    """The configuration's JSON schema."""
    with SCHEMA_FILE.open(encoding="utf-8") as file:
        loaded: dict[str, Any] = yaml.load(file, Loader=_LOADER)
    return loaded


def nearest(word: str, known: Iterable[str]) -> str:
    """'Did you mean' for a misspelt word, or the list of what there is; ends with a full stop."""
    choices = list(known)
    close = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known are {', '.join(choices)}." if choices else "None is known."


def fill(value: Any, part: Schema, where: str) -> Any:
    """`value` checked against the schema `part`, with defaults put in; `where` is its dotted place.

    Raises
    ------
    LaminaError
        At the first thing that is not allowed, with its place, its value and what to write instead.
    """
    part = _resolve(part)
    if "oneOf" in part:
        part = _choose(value, [_resolve(option) for option in part["oneOf"]], where)
    if part.get("type") == "object":
        return _fill_object(value, part, where)
    if part.get("type") == "array" and isinstance(value, list):
        filled = [fill(item, part["items"], f"{where}[{i}]") for i, item in enumerate(value)]
        return _leaf(filled, {key: rule for key, rule in part.items() if key != "items"}, where)
    return _leaf(value, part, where)


def _resolve(part: Schema) -> Schema:
    while "$ref" in part:
        part = schema()["$defs"][part["$ref"].rsplit("/", 1)[1]]
    return part


def _choose(value: Any, options: list[Schema], where: str) -> Schema:
    """The option of a `oneOf` that the value's keys point at: each has required keys that no other option requires."""
    objects = [option for option in options if option["type"] == "object"]
    if value is None and len(objects) < len(options):
        return next(option for option in options if option["type"] == "null")
    if len(objects) == 1:
        return objects[0]
    if not isinstance(value, Mapping):
        raise LaminaError(f"{where}: {_shown(value)} is not a mapping of keys to values. Give it {_forms(objects)}.")
    marks = [_marks(option, objects) for option in objects]
    meant = [i for i, mark in enumerate(marks) if mark & set(value)]
    if len(meant) == 1:
        return objects[meant[0]]
    if meant:
        clash = [sorted(marks[i] & set(value))[0] for i in meant]
        raise LaminaError(
            f"{where}: has both '{clash[0]}' and '{clash[1]}', which exclude each other. Keep one of them."
        )
    every = sorted(set().union(*marks))
    known = {key for option in objects for key in option["properties"]}
    for key in value:
        close = difflib.get_close_matches(str(key), every, n=1, cutoff=0.6)
        if key not in known and close:
            raise LaminaError(f"{where}.{key}: there is no such key. Did you mean '{close[0]}'?")
    raise LaminaError(f"{where}: nothing says what it is. Give it {_forms(objects)}.")


def _marks(option: Schema, options: list[Schema]) -> set[str]:
    others = [other["required"] for other in options if other is not option]
    return set(option["required"]) - set().union(*others)


def _forms(options: list[Schema]) -> str:
    marks = [[f"`{key}`" for key in option["required"] if key in _marks(option, options)] for option in options]
    *most, last = [" and ".join(keys) for keys in marks]
    return f"{', '.join(most)} or {last}"


def _fill_object(value: Any, part: Schema, where: str) -> dict[str, Any]:
    at = f"{where}: " if where else ""
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise LaminaError(f"{at}{_shown(value)} is not a mapping of keys to values. Write `key: value` lines below it.")
    dot = f"{where}." if where else ""
    named = part["additionalProperties"]
    if named:
        for name in value:
            _check_name(name, where)
        return {name: fill(entry, named, f"{dot}{name}") for name, entry in value.items()}
    rules = part["properties"]
    for key in value:
        if key not in rules:
            raise LaminaError(f"{dot}{key}: there is no such key. {nearest(key, rules)}")
    for key in part.get("required", ()):
        if value.get(key) is None:
            meaning = _resolve(rules[key])["description"]
            raise LaminaError(f"{dot}{key}: is missing. Add `{key}: ...` ({meaning.rstrip('.')}).")
    filled = {}
    for key, rule in rules.items():
        if key in value:
            filled[key] = fill(value[key], rule, f"{dot}{key}")
        elif "default" in rule:
            filled[key] = fill(rule["default"], rule, f"{dot}{key}")
    return filled


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str):
        raise LaminaError(f"{where}.{name}: YAML reads this name as something other than text. Quote it: '{name}'.")
    if name in RESERVED:
        raise LaminaError(f"{where}.{name}: '{name}' is reserved (unpruned model, no repair). Choose another name.")
    if not _NAME.fullmatch(name):
        raise LaminaError(
            f"{where}: '{name}' cannot be a name, since it becomes part of file names. Use letters, digits and _ . + - "
            "only, and do not begin with . or -."
        )


def _leaf(value: Any, part: Schema, where: str) -> Any:
    """A single value. Text that spells a valid number, truth value or null is taken as that: YAML reads `3e-4` as text,
    and Snakemake's `--config 'a={b: 1}'` hands over every nested value as text."""
    validator = Draft202012Validator(part)
    for reading in [value, *_readings(value)]:
        if validator.is_valid(reading) and not (isinstance(reading, float) and not math.isfinite(reading)):
            return _whole(reading, part)
    hint = ", in quotes" if "string" in _types(part) and isinstance(value, int) and "x-allowed" not in part else ""
    close = difflib.get_close_matches(str(value), [str(option) for option in part.get("enum", ())], n=1)
    meant = f" Did you mean '{close[0]}'?" if close else ""
    raise LaminaError(f"{where}: {_shown(value)} is not allowed. Write {allowed(part)}{hint}.{meant}")


def _whole(value: Any, part: Schema) -> Any:
    """JSON schema takes 2.0 for an integer; Python does not."""
    return int(value) if isinstance(value, float) and value.is_integer() and "number" not in _types(part) else value


def _readings(value: Any) -> list[Any]:
    """What a text may have been meant as."""
    if not isinstance(value, str):
        return []
    readings: list[Any] = [{"true": True, "false": False, "null": None, "": None}.get(value.lower(), value)]
    for convert in (int, float):
        try:
            readings.append(convert(value))
        except ValueError:
            continue
    return readings


def _shown(value: Any) -> str:
    """A value as YAML writes it, where that differs from Python."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def _types(part: Schema) -> list[str]:
    if "anyOf" in part:
        return [kind for option in part["anyOf"] for kind in _types(option)]
    kinds = part.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def allowed(part: Schema) -> str:
    """What a value may be, in words."""
    if "x-allowed" in part:
        return str(part["x-allowed"])
    if "enum" in part:
        options = ["null" if option is None else str(option) for option in part["enum"]]
        return options[0] if len(options) == 1 else f"one of {', '.join(options)}"
    bounds = [
        f"{words} {part[key]}"
        for key, words in {
            "minimum": "of at least",
            "exclusiveMinimum": "above",
            "maximum": "up to",
            "exclusiveMaximum": "below",
        }.items()
        if key in part
    ]
    if part.get("minItems"):
        bounds.append("with at least one entry")
    words = [_ARTICLES[kind] for kind in _types(part)]
    return " or ".join([" ".join([words[0], " and ".join(bounds)]).strip(), *words[1:]])

"""Refusals in words that users know: the key, its value, what is allowed, the nearest key.

Classes of the configuration describe a fault with `wrong`; `refusal` turns an error of pydantic into one message.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from lamina.errors import LaminaError

_WORDED = "lamina"  # the type of errors that have such a message already
_ARTICLES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list such as [a, b]",
    "object": "a mapping of keys to values",
    "null": "null",
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "up to",
    "exclusiveMaximum": "below",
}


def wrong(message: str, *place: str | int) -> ValidationError:
    """An error for validators to raise: `message` about the value at `place`, counted from the validated value."""
    # pydantic fills braces, and the message may hold braces of its own.
    error = PydanticCustomError(_WORDED, "{message}", {"message": message})
    return ValidationError.from_exception_data("", [InitErrorDetails(type=error, loc=place, input=None)])


def is_worded(error: ValidationError) -> bool:
    """Whether `wrong` made the error."""
    return error.errors(include_url=False)[0]["type"] == _WORDED


def refusal(error: ValidationError, where: str = "") -> LaminaError:
    """The first of the errors, with its dotted place."""
    first = error.errors(include_url=False)[0]
    place = where
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    return LaminaError(f"{place}: {first['msg']}" if place else first["msg"])


def nearest(word: object, known: Iterable[str]) -> str:
    """'Did you mean' for a misspelt word, else the list of known words; it is a sentence of its own."""
    choices = list(known)
    close = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known are {', '.join(choices)}." if choices else "None is known."


def shown(value: object) -> str:
    """A value as YAML writes it, where that differs from Python."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def listed(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def readings(value: object) -> Iterator[Any]:
    """Other values that a value may stand for.

    YAML reads `3e-4` as text, and Snakemake's `--config 'a={b: 1}'` hands over every nested value as text.
    """
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    if not isinstance(value, str):
        return
    if value.lower() in ("true", "false"):
        yield value.lower() == "true"
    if value.lower() in ("null", ""):
        yield None
    for convert in (int, float):
        try:
            yield convert(value)
        except ValueError:
            continue


def not_allowed(model: type[BaseModel], key: str, value: Any, error: ValidationError) -> ValidationError:
    """The error, in words, of a key whose value pydantic refused; for a list, of the entry that is wrong."""
    part: Mapping[str, Any] = model.model_json_schema()["properties"][key]
    place = error.errors(include_url=False)[0]["loc"][:1]
    if place and isinstance(place[0], int) and "items" in part:
        return wrong(_refused(value[place[0]], part["items"]), place[0])
    return wrong(_refused(value, part))


def _refused(value: Any, part: Mapping[str, Any]) -> str:
    text = "string" in _types(part) and "x-allowed" not in part and not _choices(part)
    quotes = ", in quotes" if text and isinstance(value, int) else ""
    close = difflib.get_close_matches(str(value), [str(choice) for choice in _choices(part)], n=1)
    meant = f" Did you mean '{close[0]}'?" if close else ""
    return f"{shown(value)} is not allowed. Write {allowed(part)}{quotes}.{meant}"


def allowed(part: Mapping[str, Any]) -> str:
    """The allowed values, in words, from the JSON schema of a key."""
    if "x-allowed" in part:
        return str(part["x-allowed"])
    if "anyOf" in part:
        return " or ".join(allowed(option) for option in part["anyOf"])
    if choices := _choices(part):
        words = ["null" if choice is None else str(choice) for choice in choices]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    bounds = [f"{words} {part[key]}" for key, words in _BOUNDS.items() if key in part]
    if part.get("minItems"):
        bounds.append("with at least one entry")
    return " ".join([_ARTICLES[part["type"]], " and ".join(bounds)]).strip()


def _choices(part: Mapping[str, Any]) -> list[Any]:
    return [part["const"]] if "const" in part else part.get("enum", [])


def _types(part: Mapping[str, Any]) -> list[str]:
    return [kind for option in part.get("anyOf", [part]) for kind in [option.get("type")] if kind]

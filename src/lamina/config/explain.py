"""Refusals in words that users know: the key, its value, what is allowed, the nearest key.

`refusal` turns an error of pydantic into one sentence about one key. Validators of the configuration word what pydantic
cannot know with `wrong`.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from lamina.errors import LaminaError

if TYPE_CHECKING:
    from lamina.config.entry import Entry

_WORDED = "lamina"  # the type of errors that have such a message already
_FIRST = ("extra_forbidden", _WORDED)  # what explains more than an error that may follow from it
_ARTICLES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list such as [a, b]",
    "object": "a mapping of keys to values",
    "null": "null",
}
_BOOLEANS = {
    "true": True,
    "false": False,
    # As YAML 1.1 has it, in which many have learned to write.
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "up to",
    "exclusiveMaximum": "below",
}


def wrong(message: str, key: str = "") -> PydanticCustomError:
    """An error for validators to raise: `message` about the validated value, or about a key in it."""
    # pydantic fills braces, and the message may hold braces of its own.
    return PydanticCustomError(_WORDED, "{message}", {"message": message, "key": key})


def refusal(model: "type[Entry]", error: ValidationError, raw: Any) -> LaminaError:
    """One of the errors in words, after the dotted place of its key; `raw` is what `model` refused."""
    errors: list[Any] = list(error.errors(include_url=False))
    first = min(
        errors,
        key=lambda each: _FIRST.index(each["type"]) if each["type"] in _FIRST else len(_FIRST),
    )
    place, message = _explained(model, first, raw)
    return LaminaError(f"{place}: {message}" if place else message)


def inside(annotation: Any) -> "type[Entry] | None":
    """The class of entries that a key holds, one or several by name; None for other keys."""
    if isinstance(annotation, type) and hasattr(annotation, "from_options"):
        return annotation
    return next(filter(None, map(inside, get_args(annotation))), None)


def nearest(word: object, known: Iterable[str]) -> str:
    """'Did you mean' for a misspelt word, else the list of known words; it is a sentence of its own."""
    choices = list(known)
    if close := _close(word, choices):
        return close.lstrip()
    return f"Known are {', '.join(choices)}." if choices else "None is known."


def shown(value: object) -> str:
    """A value as YAML writes it, where that differs from Python."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def listed(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def readings(value: object) -> Iterator[Any]:
    """Other values that a value may stand for, the likeliest first.

    A whole number with a point, a number as the text that was written, what a text spells, and at last a list of it
    alone: `removed: 25%`.
    """
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield getattr(value, "written", str(value))
    if isinstance(value, str):
        yield from _spelt(value)
    if isinstance(value, str | int | float | Mapping):
        yield [value]


def _spelt(text: str) -> Iterator[Any]:
    """What a text spells: true or false, null, a number."""
    if text.lower() in _BOOLEANS:
        yield _BOOLEANS[text.lower()]
    if text.lower() in ("null", ""):
        yield None
    with suppress(ValueError):
        yield int(text)
    try:
        number = float(text)
    except ValueError:
        return
    yield number
    if number.is_integer():
        yield int(number)


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


def _explained(model: Any, error: Any, raw: Any) -> tuple[str, str]:
    """The dotted place of an error, and what is wrong there.

    `loc` of an error names keys, entries by name, and the title of the kind that was meant. Behind a key with a plain
    value it goes on with the types that were tried, which no user has written.
    """
    place, value, steps, base, kind = "", raw, list(error["loc"]), None, model
    while steps:
        if kinds := kind.kinds():
            base, kind = kind, {each.title(): each for each in kinds}[steps.pop(0)]
            continue
        key = str(steps.pop(0))
        place, value = f"{place}.{key}".lstrip("."), _below(value, key)
        field = kind.model_fields.get(key)
        if field is None:
            return place, _unknown(base, kind, key, value)
        if field.is_required() and value is None:
            return place, _missing(kind, key)
        entry = inside(field.annotation)
        if entry is None:
            return _value(kind, key, place, steps, value, error)
        if get_origin(field.annotation) is dict and steps:
            value, place = _below(value, steps[0]), f"{place}.{steps.pop(0)}"
        base, kind = None, entry
    if error["type"] == _WORDED:
        return _worded(place, error)
    if not isinstance(value, Mapping):
        titles = [] if kind is model else [each.title() for each in kind.kinds() if not each.BY]
        remedy = f"Give it {listed(titles)}." if titles else "Write `key: value` lines below it."
        return place, f"{shown(value)} is not a mapping of keys to values. {remedy}"
    return _no_kind(kind, place, value)


def _below(value: Any, key: Any) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _worded(place: str, error: Any) -> tuple[str, str]:
    return f"{place}.{error['ctx']['key']}".strip("."), error["msg"]


def _unknown(base: Any, kind: Any, key: str, value: Any) -> str:
    """About a key that the entry does not have; the other kinds of a choice may have it."""
    titles = [
        other.title() for other in (base.kinds() if base else ()) if key in other.model_fields
    ]
    if not titles:
        return f"there is no such key. {nearest(key, kind.model_fields)}"
    mine, theirs = kind.title(), listed(titles)
    label, remedy = (
        (f"{kind.BY} '{mine}'", f", or write {kind.BY}: {theirs}") if kind.BY else (mine, "")
    )
    return (
        f"{shown(value)} does not go with {label}, only with {theirs}. Leave `{key}` out{remedy}."
    )


def _missing(kind: Any, key: str) -> str:
    field = kind.model_fields[key]
    if field.examples:
        return f"is missing, and {kind.BY} '{kind.title()}' needs it. Write {key}: {listed(field.examples)}."
    return f"is missing. Add `{key}: ...` ({(field.description or '').rstrip('.')})."


def _no_kind(base: Any, place: str, value: Mapping[str, Any]) -> tuple[str, str]:
    """About an entry whose keys do not say which kind of a choice it is."""
    titles = [kind.title() for kind in base.kinds()]
    if base.BY:
        names, place = allowed({"enum": titles}), f"{place}.{base.BY}".lstrip(".")
        if value.get(base.BY, base.USUAL) is None and base.USUAL is None:
            return place, f"is missing. Write {names}."
        return (
            place,
            f"{shown(value[base.BY])} is not allowed. Write {names}.{_close(value[base.BY], titles)}",
        )
    if marked := base.marked(value):
        clash = [next(key for key in kind.MARKS if key in value) for kind in marked]
        return (
            place,
            f"has both '{clash[0]}' and '{clash[1]}', which exclude each other. Keep one of them.",
        )
    known = {key for kind in base.kinds() for key in kind.model_fields}
    for key in value:
        near = _close(key, [mark for kind in base.kinds() for mark in kind.MARKS])
        if key not in known and near:
            return f"{place}.{key}".lstrip("."), f"there is no such key.{near}"
    return place, f"nothing says what it is. Give it {listed(titles)}."


def _value(
    kind: Any, key: str, place: str, steps: list[Any], value: Any, error: Any
) -> tuple[str, str]:
    """About a value that is not allowed; for a list, about the entry that is wrong."""
    if error["type"] == _WORDED:
        return _worded(place, error)
    part: Mapping[str, Any] = kind.model_json_schema()["properties"][key]
    if steps and isinstance(steps[0], int) and "items" in part:
        place, value, part = f"{place}[{steps[0]}]", value[steps[0]], part["items"]
    text = any(option.get("type") == "string" for option in part.get("anyOf", [part]))
    plain = text and "x-allowed" not in part and not _choices(part)
    quotes = ", in quotes" if plain and isinstance(value, int) else ""
    near = _close(value, map(str, _choices(part)))
    return place, f"{shown(value)} is not allowed. Write {allowed(part)}{quotes}.{near}"


def _close(word: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def _choices(part: Mapping[str, Any]) -> list[Any]:
    return [part["const"]] if "const" in part else part.get("enum", [])

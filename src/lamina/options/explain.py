"""Errors in words that users know: the key, its value, what is allowed, the nearest key.

`describe_error` turns an error of pydantic into one sentence about one key. What pydantic cannot
know, validators of the configuration say with `invalid`.
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
    from lamina.options.entry import Entry

# The type of errors that `invalid` made, which have their message already.
_WORDED = "lamina"
# Types of errors that explain more than an error that may follow from them.
_FIRST_TYPES = ("extra_forbidden", _WORDED)
_TYPE_WORDS = {
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
_BOUND_WORDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "up to",
    "exclusiveMaximum": "below",
}


def invalid(message: str, key: str = "") -> PydanticCustomError:
    """An error for validators to raise: `message` about the validated value, or a key in it."""
    # pydantic fills braces, and the message may hold braces of its own.
    return PydanticCustomError(_WORDED, "{message}", {"message": message, "key": key})


def describe_error(
    entry_class: "type[Entry]", error: ValidationError, raw_values: Any
) -> LaminaError:
    """One of the errors in words, after its dotted key; `entry_class` refused the `raw_values`."""
    all_errors: list[Any] = list(error.errors(include_url=False))
    first_error = min(all_errors, key=_explanation_order)
    key, message = _Explanation(entry_class, first_error, raw_values).describe()
    return LaminaError(f"{key}: {message}" if key else message)


def _explanation_order(error: Any) -> int:
    if error["type"] in _FIRST_TYPES:
        return _FIRST_TYPES.index(error["type"])
    return len(_FIRST_TYPES)


def entry_class_of(annotation: Any) -> "type[Entry] | None":
    """The class of entries that a key holds, one or several by name; None for other keys."""
    if isinstance(annotation, type) and hasattr(annotation, "from_options"):
        return annotation
    for argument in get_args(annotation):
        entry_class = entry_class_of(argument)
        if entry_class is not None:
            return entry_class
    return None


def suggest(word: object, known: Iterable[str]) -> str:
    """'Did you mean' for a misspelt word, else the list of known words; a sentence of its own."""
    known_words = list(known)
    suggestion = _suggest(word, known_words)
    if suggestion:
        return suggestion.lstrip()
    if not known_words:
        return "None is defined."
    return f"Choose from {', '.join(known_words)}."


def as_yaml(value: object) -> str:
    """A value as YAML writes it, where that differs from Python."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return repr(value)


def join_words(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first_words, last_word = words
    if not first_words:
        return last_word
    return f"{', '.join(first_words)} or {last_word}"


def possible_readings(value: object) -> Iterator[Any]:
    """Other values that a value may stand for, the likeliest first.

    A whole number with a point; a number as the text that was written; what a text spells; and at
    last a list of the value alone, as in `removed: 25%`.
    """
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield getattr(value, "written", str(value))
    if isinstance(value, str):
        yield from _spelt_values(value)
    if isinstance(value, str | int | float | Mapping):
        yield [value]


def _spelt_values(text: str) -> Iterator[Any]:
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


def describe_allowed(schema: Mapping[str, Any]) -> str:
    """The allowed values, in words, from the JSON schema of a key."""
    if "x-allowed" in schema:
        return str(schema["x-allowed"])
    if "anyOf" in schema:
        return " or ".join(describe_allowed(option) for option in schema["anyOf"])

    listed_choices = _choices(schema)
    if listed_choices:
        choice_words = ["null" if choice is None else str(choice) for choice in listed_choices]
        return choice_words[0] if len(choice_words) == 1 else f"one of {', '.join(choice_words)}"

    bound_words = [
        f"{choice_words} {schema[key]}"
        for key, choice_words in _BOUND_WORDS.items()
        if key in schema
    ]
    if schema.get("minItems"):
        bound_words.append("with at least one entry")
    return " ".join([_TYPE_WORDS[schema["type"]], " and ".join(bound_words)]).strip()


class _Explanation:
    """Follows an error of pydantic from the whole configuration down to the key that is wrong.

    `loc` of the error names keys, entries by name, and the title of the kind that was meant. After
    a key with a plain value it goes on with the types that were tried, which no user has written.
    """

    def __init__(self, entry_class: Any, error: Any, raw_values: Any) -> None:
        self.error = error
        self.top_class = entry_class
        # The class of the entry that was reached, and the choice that it is a kind of, if any.
        self.entry_class = entry_class
        self.choice: Any = None
        # The dotted key that was reached, and what the user wrote there.
        self.key = ""
        self.value = raw_values
        self.steps: list[Any] = list(error["loc"])

    def describe(self) -> tuple[str, str]:
        """The dotted key of the error, and what is wrong there."""
        while self.steps:
            if self.entry_class.kinds():
                self._enter_kind()
                continue
            name = str(self.steps.pop(0))
            self._enter(name)
            field = self.entry_class.model_fields.get(name)
            if field is None:
                return self.key, self._describe_unknown_key(name)
            if field.is_required() and self.value is None:
                return self.key, _describe_missing_key(self.entry_class, name)
            inner_class = entry_class_of(field.annotation)
            if inner_class is None:
                return self._describe_value(name)
            if get_origin(field.annotation) is dict and self.steps:
                self._enter(self.steps.pop(0))
            self.choice = None
            self.entry_class = inner_class
        return self._describe_entry()

    def _enter(self, name: Any) -> None:
        """Go on to a key, or to an entry by its name."""
        self.key = f"{self.key}.{name}".lstrip(".")
        self.value = self.value.get(name) if isinstance(self.value, Mapping) else None

    def _enter_kind(self) -> None:
        """Go on to the kind of a choice that the next step names."""
        title = self.steps.pop(0)
        self.choice = self.entry_class
        kinds = {kind.title(): kind for kind in self.choice.kinds()}
        self.entry_class = kinds[title]

    def _describe_unknown_key(self, name: str) -> str:
        """About a key that the entry does not have; the other kinds of a choice may have it."""
        kinds = self.choice.kinds() if self.choice else []
        kind_titles = [kind.title() for kind in kinds if name in kind.model_fields]
        if not kind_titles:
            return f"there is no such key. {suggest(name, self.entry_class.model_fields)}"

        own_title = self.entry_class.title()
        other_titles = join_words(kind_titles)
        selecting_key = self.entry_class.BY
        if selecting_key:
            own_title = f"{selecting_key} '{own_title}'"
        message = (
            f"{as_yaml(self.value)} does not go with {own_title}, only with {other_titles}. Leave "
            f"`{name}` out"
        )
        if selecting_key:
            message += f", or write {selecting_key}: {other_titles}"
        return f"{message}."

    def _describe_value(self, name: str) -> tuple[str, str]:
        """About a value that is not allowed; in a list, about the entry that is wrong."""
        if self.error["type"] == _WORDED:
            return self._describe_worded()
        key = self.key
        value = self.value
        key_schema: Mapping[str, Any] = self.entry_class.model_json_schema()["properties"][name]
        if self.steps and isinstance(self.steps[0], int) and "items" in key_schema:
            key = f"{key}[{self.steps[0]}]"
            value = value[self.steps[0]]
            key_schema = key_schema["items"]

        quotes_hint = ""
        if isinstance(value, int) and _takes_any_text(key_schema):
            quotes_hint = ", in quotes"
        suggestion = _suggest(value, [str(choice) for choice in _choices(key_schema)])
        message = (
            f"{as_yaml(value)} is not allowed. Write {describe_allowed(key_schema)}{quotes_hint}."
            f"{suggestion}"
        )
        return key, message

    def _describe_worded(self) -> tuple[str, str]:
        """About what a validator refused with `invalid`."""
        key = f"{self.key}.{self.error['ctx']['key']}".strip(".")
        return key, self.error["msg"]

    def _describe_entry(self) -> tuple[str, str]:
        """About an entry as a whole."""
        if self.error["type"] == _WORDED:
            return self._describe_worded()
        if isinstance(self.value, Mapping):
            return self._describe_missing_kind()

        kind_titles: list[str] = []
        if self.entry_class is not self.top_class:
            kinds = self.entry_class.kinds()
            kind_titles = [kind.title() for kind in kinds if not kind.BY]
        remedy = "Write `key: value` lines below it."
        if kind_titles:
            remedy = f"Give it {join_words(kind_titles)}."
        return self.key, f"{as_yaml(self.value)} is not a mapping of keys to values. {remedy}"

    def _describe_missing_kind(self) -> tuple[str, str]:
        """About an entry whose keys do not say which kind of a choice it is."""
        choice = self.entry_class
        kind_titles = [kind.title() for kind in choice.kinds()]
        if choice.BY:
            return self._describe_selecting_key(kind_titles)

        marked_kinds = choice.marked(self.value)
        if marked_kinds:
            marking_keys = [self._mark_of(kind) for kind in marked_kinds]
            message = (
                f"has both '{marking_keys[0]}' and '{marking_keys[1]}', which exclude each other. "
                "Keep one of them."
            )
            return self.key, message

        for key in self.value:
            suggestion = self._suggest_mark(key)
            if suggestion:
                return f"{self.key}.{key}".lstrip("."), f"there is no such key.{suggestion}"
        return self.key, f"nothing says what it is. Give it {join_words(kind_titles)}."

    def _describe_selecting_key(self, kind_titles: list[str]) -> tuple[str, str]:
        """About the key that names the kind, such as `method`."""
        choice = self.entry_class
        selecting_key = f"{self.key}.{choice.BY}".lstrip(".")
        allowed_words = describe_allowed({"enum": kind_titles})
        if self.value.get(choice.BY, choice.USUAL) is None and choice.USUAL is None:
            return selecting_key, f"is missing. Write {allowed_words}."
        value = self.value[choice.BY]
        suggestion = _suggest(value, kind_titles)
        return selecting_key, f"{as_yaml(value)} is not allowed. Write {allowed_words}.{suggestion}"

    def _mark_of(self, kind: Any) -> str:
        """The first key of the entry that marks a kind."""
        return next(key for key in kind.MARKS if key in self.value)

    def _suggest_mark(self, key: str) -> str:
        """'Did you mean' for an unknown key that is nearly one that marks a kind."""
        marking_keys: list[str] = []
        for kind in self.entry_class.kinds():
            if key in kind.model_fields:
                return ""
            marking_keys += kind.MARKS
        return _suggest(key, marking_keys)


def _describe_missing_key(entry_class: Any, key: str) -> str:
    field = entry_class.model_fields[key]
    if field.examples:
        return (
            f"is missing, and {entry_class.BY} '{entry_class.title()}' needs it. Write {key}: "
            f"{join_words(field.examples)}."
        )
    return f"is missing. Add `{key}: ...` ({(field.description or '').rstrip('.')})."


def _takes_any_text(key_schema: Mapping[str, Any]) -> bool:
    """Whether a key takes a text of no special form."""
    if "x-allowed" in key_schema or _choices(key_schema):
        return False
    schema_options = key_schema.get("anyOf", [key_schema])
    return any(option.get("type") == "string" for option in schema_options)


def _suggest(word: object, known: Iterable[str]) -> str:
    """' Did you mean' the known word that is most like a word; empty if none is."""
    close_words = difflib.get_close_matches(str(word), list(known), n=1)
    if not close_words:
        return ""
    return f" Did you mean '{close_words[0]}'?"


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    """The values that the JSON schema of a key lists; empty if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    return list(schema.get("enum", []))

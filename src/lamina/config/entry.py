"""What all entries of the configuration have in common: strict reading, refusals in words, and the options of a job.

An entry is a pydantic model. Its fields are the keys, with default, bounds and help; nothing else repeats them.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from lamina.config import explain
from lamina.config.explain import listed, nearest, shown, wrong

RESERVED = ("base", "none")

_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")

T = TypeVar("T")


def option(
    help: str, default: Any = ..., *, allowed: str | None = None, shown_default: str | None = None, **bounds: Any
) -> Any:
    """A key of an entry; without a default it is needed.

    `allowed` describes the allowed values if the type describes them badly; `shown_default` describes a default that is
    set later.
    """
    words = {"x-allowed": allowed, "x-default": shown_default}
    if given := {key: text for key, text in words.items() if text is not None}:
        bounds["json_schema_extra"] = given
    return Field(default, description=help, **bounds)


def seed_option() -> Any:
    """The key `seed` of an entry that draws something."""
    help = "Seed of what is random here. Left out, it is the top-level `seed`."
    return option(help, 0, ge=0, shown_default="top-level `seed`")


def group_option() -> Any:
    """The key `group` of an entry that can be repeated with other seeds."""
    return option(
        "Label shared by replicates, which differ in what they draw. Tables, figures and report have their mean and "
        "spread under it.",
        None,
    )


def replicates_option() -> Any:
    """The key `replicates` of an entry that draws something."""
    return option(
        "Number of draws: this one and NAME.2, NAME.3 … of one `group`, with the next seeds, or for texts the next "
        "documents. Studies that list NAME take all of them.",
        1,
        ge=1,
    )


class Entry(BaseModel):
    """A part of the configuration with fixed keys; those in `ASIDE` are not among the options of a job."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    ASIDE: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, Any]:
        """The values for the parameters of a job: JSON-able, and only those that differ from the defaults.

        So a new option with its default changes no job. Nor does another default: delete what was made by the old one.
        """
        values, fields = self.model_dump(mode="json", exclude=set(self.ASIDE)), type(self).model_fields
        return {key: value for key, value in values.items() if value != fields[key].default}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The entry with these `options`; the keys in `ASIDE` have their defaults.

        Raises
        ------
        LaminaError
            If a key or a value is not allowed.
        """
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            raise explain.refusal(error) from None

    @classmethod
    def unknown(cls, key: str, value: Any) -> str:
        """The message about a key that the entry does not have."""
        return f"there is no such key. {nearest(key, cls.model_fields)}"

    @classmethod
    def missing(cls, key: str) -> str:
        """The message about a needed key that is missing."""
        return f"is missing. Add `{key}: ...` ({(cls.model_fields[key].description or '').rstrip('.')})."

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        keys = mapping(value)
        for key in keys:
            if key not in cls.model_fields:
                raise wrong(cls.unknown(key, keys[key]), str(key))
        for key, field in cls.model_fields.items():
            if field.is_required() and keys.get(key) is None:
                raise wrong(cls.missing(key), key)
        return keys

    @field_validator("*", mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return read_text(value, handler)
        except ValidationError as error:
            if explain.is_worded(error):
                raise
            raise explain.not_allowed(cls, str(info.field_name), value, error) from None


class Choice(Entry):
    """One of several entries: a base class, whose subclasses are what it may be.

    `BY` is the key whose value names the subclass. If `BY` is empty, the keys that are there decide.
    """

    BY: ClassVar[str] = ""

    @classmethod
    def pick(cls, value: Mapping[str, Any]) -> type[Self]:
        """The subclass that is meant."""
        raise NotImplementedError

    @classmethod
    def title(cls) -> str:
        """The name of a subclass in messages."""
        raise NotImplementedError

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """As for any entry; the base class picks the subclass first."""
        if not cls.__subclasses__():
            return super().from_options(options)
        try:
            picked = cls.pick(options)
        except ValidationError as error:
            raise explain.refusal(error) from None
        return picked.from_options(options)

    @classmethod
    def unknown(cls, key: str, value: Any) -> str:
        """As for any entry; the message names the other subclasses that have the key."""
        siblings = [
            subclass for base in cls.__bases__ if issubclass(base, Choice) for subclass in base.__subclasses__()
        ]
        titles = [subclass.title() for subclass in siblings if key in subclass.model_fields]
        if not titles:
            return super().unknown(key, value)
        mine, theirs = cls.title(), listed(titles)
        label, remedy = (f"{cls.BY} '{mine}'", f", or write {cls.BY}: {theirs}") if cls.BY else (mine, "")
        return f"{shown(value)} does not go with {label}, only with {theirs}. Leave `{key}` out{remedy}."

    @model_validator(mode="wrap")
    @classmethod
    def _pick(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, cls) or not cls.__subclasses__():
            return handler(value)
        forms = "" if cls.BY else f"Give it {listed(subclass.title() for subclass in cls.__subclasses__())}."
        return cls.pick(mapping(value, forms)).model_validate(value)


class ByValue(Choice):
    """A choice by the value of the key `BY`, such as `method: ghost`; without the key it is `USUAL`."""

    USUAL: ClassVar[str | None] = None

    @classmethod
    def title(cls) -> str:
        return str(cls.model_fields[cls.BY].default)

    @classmethod
    def pick(cls, value: Mapping[str, Any]) -> type[Self]:
        classes = {subclass.title(): subclass for subclass in cls.__subclasses__()}
        given, names = value.get(cls.BY, cls.USUAL), explain.allowed({"enum": list(classes)})
        if given is None and cls.USUAL is None:
            raise wrong(f"is missing. Write {names}.", cls.BY)
        if not isinstance(given, str) or given not in classes:
            near = nearest(given, classes)
            meant = f" {near}" if near.startswith("Did") else ""
            raise wrong(f"{shown(given)} is not allowed. Write {names}.{meant}", cls.BY)
        return classes[given]

    def options(self) -> dict[str, Any]:
        """As for any entry, with the key that names the subclass."""
        return {self.BY: self.title()} | super().options()


class ByKey(Choice):
    """A choice by the keys that are there: only one subclass has the keys in its `MARKS`."""

    MARKS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def title(cls) -> str:
        return " and ".join(f"`{key}`" for key in cls.MARKS)

    @classmethod
    def pick(cls, value: Mapping[str, Any]) -> type[Self]:
        classes = cls.__subclasses__()
        meant = [subclass for subclass in classes if set(subclass.MARKS) & set(value)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            clash = [next(key for key in subclass.MARKS if key in value) for subclass in meant]
            raise wrong(f"has both '{clash[0]}' and '{clash[1]}', which exclude each other. Keep one of them.")
        marks = [key for subclass in classes for key in subclass.MARKS]
        known = {key for subclass in classes for key in subclass.model_fields}
        for key in value:
            near = nearest(key, marks)
            if key not in known and near.startswith("Did"):
                raise wrong(f"there is no such key. {near}", str(key))
        raise wrong(f"nothing says what it is. Give it {listed(subclass.title() for subclass in classes)}.")


def mapping(value: Any, remedy: str = "") -> dict[str, Any]:
    """A copy of a mapping; None (a key without a value) gives an empty mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        remedy = remedy or "Write `key: value` lines below it."
        raise wrong(f"{shown(value)} is not a mapping of keys to values. {remedy}")
    return dict(value)


def named(value: Any) -> dict[str, Any]:
    """A mapping whose keys are names that the user chose."""
    entries, lower = mapping(value), dict[str, str]()
    for name in entries:
        if not isinstance(name, str):
            raise wrong(f"YAML reads this name as something other than text. Quote it: '{name}'.", str(name))
        if name in RESERVED:
            raise wrong(f"'{name}' is reserved (unpruned model, no repair). Choose another name.", name)
        if not _NAME.fullmatch(name):
            raise wrong(
                f"'{name}' cannot be a name, since it becomes part of file names. Use letters, digits and _ . + - "
                "only, and do not begin with . or -."
            )
        if lower.setdefault(name.lower(), name) != name:
            raise wrong(
                f"'{lower[name.lower()]}' and '{name}' differ only by case, and many file systems take them for one "
                "name. Rename one of the two.",
                name,
            )
    return entries


def read_text(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """The value if it is valid, else a valid reading of its text."""
    try:
        return handler(value)
    except ValidationError:
        for reading in explain.readings(value):
            try:
                return handler(reading)
            except ValidationError:
                continue
        raise


def _document_range(text: str) -> str:
    if not re.fullmatch(r"[0-9]*:[0-9]*", text):
        raise ValueError
    start, stop = document_range(text)
    if stop is not None and stop <= start:
        better = f"{stop}:{start}" if stop < start else f"{start}:{start + 1}"
        raise wrong(f'"{text}" holds no document, since its end is not after its start. Write such as "{better}".')
    return text


def document_range(documents: str | None) -> tuple[int, int | None]:
    """First document of a half-open range, and the one after its last (None: to the end)."""
    start, _, stop = (documents or ":").partition(":")
    return int(start or 0), int(stop) if stop else None


Named = Annotated[dict[str, T], BeforeValidator(named)]
# Reads the entries of a list as `Entry` reads its keys.
Spelt = WrapValidator(read_text)
Filled = Annotated[str, Field(min_length=1)]
# A folder or file of the user; ~ is the home folder.
Place = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
Documents = Annotated[str, AfterValidator(_document_range)]
DOCUMENTS_ALLOWED = 'a range in quotes such as "0:500", or null for all'

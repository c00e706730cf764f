"""What all entries of the configuration have in common: strict pydantic models, and the options of a job.

The fields of an entry are its keys, with default, bounds and help; nothing else repeats them. `explain.describe_error` turns
pydantic's errors into sentences.
"""

import importlib
import os
import pkgutil
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, Union

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
)
from pydantic_core import CoreSchema

from lamina.config import explain
from lamina.config.explain import wrong

RESERVED = ("base", "none")

_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")

T = TypeVar("T")


def option(
    help: str,
    default: Any = ...,
    *,
    allowed: str | None = None,
    shown_default: str | None = None,
    **bounds: Any,
) -> Any:
    """A key of an entry; without a default it is needed.

    `allowed` describes the allowed values if the type describes them badly; `shown_default` describes a default that is
    set later. `examples` are values to write where a needed key is missing.
    """
    words = {"x-allowed": allowed, "x-default": shown_default}
    if given := {key: text for key, text in words.items() if text is not None}:
        bounds["json_schema_extra"] = given
    return Field(default, description=help, **bounds)


# Keys that several entries have.
seed_option = partial(
    option,
    "Seed of what is random here. Left out, it is the top-level `seed`.",
    0,
    ge=0,
    shown_default="top-level `seed`",
)
group_option = partial(
    option,
    "Label shared by replicates, which differ in what they draw. Tables, figures and report have their mean and "
    "spread under it.",
    None,
)
replicates_option = partial(
    option,
    "Number of draws: this one and NAME.2, NAME.3 … of one `group`, with the next seeds, or for texts the next "
    "documents. Studies that list NAME take all of them.",
    1,
    ge=1,
)


def read_text(value: Any, handler: pydantic.ValidatorFunctionWrapHandler) -> Any:
    """The value if it is valid, else what its text spells, if that is.

    YAML reads `3e-4` as text, and Snakemake's `--config 'a={b: 1}'` hands over every nested value as text.
    """
    try:
        return handler(value)
    except ValidationError:
        for reading in explain.readings(value):
            try:
                return handler(reading)
            except ValidationError:
                continue
        raise


class Entry(BaseModel):
    """A part of the configuration with fixed keys. `ASIDE` are keys that are not among the options of a job."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True
    )

    ASIDE: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def kinds(cls) -> list[type[Self]]:
        """What an entry that is a choice may be; nothing of any other entry, and of one of the kinds."""
        return []

    def options(self) -> dict[str, Any]:
        """The values for the parameters of a job: JSON-able, and only those that differ from the defaults.

        So a new option with its default changes no job. Nor does another default: delete what was made by the old one.
        """
        return self.model_dump(mode="json", exclude=set(self.ASIDE), exclude_defaults=True)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The entry with these `options`; the keys in `ASIDE` have their defaults.

        Raises LaminaError if a key or a value is not allowed; the message names it and the remedy.
        """
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            raise explain.describe_error(cls, error, options) from None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        """A key without a value below it is an entry with its defaults."""
        return {} if value is None else value

    _read = pydantic.field_validator("*", mode="wrap")(read_text)


class Choice(Entry):
    """One of several entries: a base class; its subclasses are the kinds of entry, a tagged union for pydantic.

    The value of the key `BY` names the kind, such as `method: lora`; without the key it is `USUAL`. If `BY` is empty,
    the keys that are there decide: only one kind has the keys in its `MARKS`. Modules of `PACKAGE` may define kinds.
    """

    BY: ClassVar[str] = ""
    USUAL: ClassVar[str | None] = None
    MARKS: ClassVar[tuple[str, ...]] = ()
    PACKAGE: ClassVar[str] = ""

    @classmethod
    def kinds(cls) -> list[type[Self]]:
        """The subclasses of a base class, those of a package by their title; none for a kind itself."""
        if Choice not in cls.__bases__:
            return []
        if not cls.PACKAGE:
            return cls.__subclasses__()
        _import_kinds(cls.PACKAGE, cls.__name__)
        return sorted(cls.__subclasses__(), key=lambda kind: kind.title())

    @classmethod
    def title(cls) -> str:
        """The name of a kind: what its key `BY` says, or the keys that mark it."""
        return (
            str(cls.model_fields[cls.BY].default)
            if cls.BY
            else " and ".join(f"`{key}`" for key in cls.MARKS)
        )

    @classmethod
    def marked(cls, value: Mapping[str, Any]) -> list[type[Self]]:
        """The kinds whose marks are among the keys of an entry; exactly one of them in a valid entry."""
        return [kind for kind in cls.kinds() if set(kind.MARKS) & set(value)]

    @classmethod
    def tag(cls, value: Any) -> str | None:
        """The title of the kind that an entry is meant to be; None if it does not say so."""
        if isinstance(value, cls):
            return value.title()
        given = {} if value is None else value
        if not isinstance(given, Mapping):
            return None
        if cls.BY:
            name = given.get(cls.BY, cls.USUAL)
            return name if isinstance(name, str) else None
        marked = cls.marked(given)
        return marked[0].title() if len(marked) == 1 else None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """As for any entry; the options of a base class name the kind, also one that was defined a moment ago."""
        kind = cls.kind_of(cls.tag(options) or "")
        return kind.from_options(options) if kind else super().from_options(options)

    @classmethod
    def kind_of(cls, title: str) -> type[Self] | None:
        """The kind of a base class with this title; None if there is none."""
        return next((kind for kind in cls.kinds() if kind.title() == title), None)

    def options(self) -> dict[str, Any]:
        """As for any entry, with the key that names the kind."""
        return ({self.BY: self.title()} if self.BY else {}) | super().options()

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        kinds = cls.kinds()
        if not kinds:
            return handler(source)
        union: Any = Union[tuple(Annotated[kind, pydantic.Tag(kind.title())] for kind in kinds)]  # noqa: UP007
        return handler.generate_schema(Annotated[union, pydantic.Discriminator(cls.tag)])

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        kind = handler.resolve_ref_schema(schema)
        if cls.BY and not cls.kinds() and cls.title() != cls.USUAL:
            kind["required"] = [cls.BY, *kind.get("required", [])]
        return schema


@cache
def _import_kinds(package: str, base: str) -> None:
    """Import those modules of a package that have a subclass of `base` among their classes, as their text says.

    Such a module must not import torch at its top, since the configuration is read without it.
    """
    folders = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(folders):
        file = Path(folders[0], f"{module.name}.py")
        if file.is_file() and re.search(
            rf"^class \w+\((\w+, )*{base}\)", file.read_text("utf-8"), re.MULTILINE
        ):
            importlib.import_module(f"{package}.{module.name}")


def _named(value: Any) -> Any:
    """A mapping whose keys are names that the user chose."""
    lower = dict[str, str]()
    if not isinstance(value, Mapping):
        return {} if value is None else value
    for name in value:
        if not isinstance(name, str):
            raise wrong(
                f"YAML reads this name as something other than text. Quote it: '{name}'.", str(name)
            )
        if name in RESERVED:
            raise wrong(
                f"'{name}' is reserved (unpruned model, no repair). Choose another name.", name
            )
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
    return dict(value)


def _document_range(text: str) -> str:
    if not re.fullmatch(r"[0-9]*:[0-9]*", text):
        raise ValueError
    start, stop = document_range(text)
    if stop is not None and stop <= start:
        better = f"{stop}:{start}" if stop < start else f"{start}:{start + 1}"
        raise wrong(
            f'"{text}" holds no document, since its end is not after its start. Write such as "{better}".'
        )
    return text


def document_range(documents: str | None) -> tuple[int, int | None]:
    """First document of a half-open range, and the one after its last (None: to the end)."""
    start, _, stop = (documents or ":").partition(":")
    return int(start or 0), int(stop) if stop else None


Named = Annotated[dict[str, T], BeforeValidator(_named)]
Spelt = WrapValidator(read_text)  # reads the entries of a list as `Entry` reads its keys
Weights = Named[Annotated[float, Spelt, Field(gt=0)]]  # weights by name, such as {corpus: 0.1}
Name = Annotated[str, Spelt]  # a number in a list of names is the name that was written
Filled = Annotated[str, Field(min_length=1), Spelt]
# A folder or file of the user; ~ is the home folder.
Place = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
Documents = Annotated[str, AfterValidator(_document_range)]
DOCUMENTS_ALLOWED = 'a range in quotes such as "0:500", or null for all'


if TYPE_CHECKING:
    Options = Annotated[T, ...]
else:

    class Options:
        """`Options[Selector]`: an entry, of which a job's params have the options that differ from their defaults."""

        def __class_getitem__(cls, entry: type[Entry]) -> Any:
            return Annotated[
                entry,
                pydantic.PlainSerializer(lambda value: value.options()),
                pydantic.PlainValidator(partial(_entry, entry)),
            ]


def _entry(kind: type[Entry], value: Any) -> Any:
    return kind.from_options(value) if isinstance(value, Mapping) else value

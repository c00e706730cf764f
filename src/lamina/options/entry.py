"""What all entries of the configuration have in common: strict pydantic models.

The fields of an entry are its keys, with default, bounds and help; nothing else repeats them.
`explain.describe_error` turns pydantic's errors into sentences.
"""

import importlib
import importlib.util
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

from lamina.options import explain
from lamina.options.explain import invalid

# Names that are taken: the base model, and the absence of a repair or a healing.
RESERVED = ("base", "none")

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")

T = TypeVar("T")


def option(
    help: str,
    default: Any = ...,
    *,
    allowed: str | None = None,
    shown_default: str | None = None,
    **bounds: Any,
) -> Any:
    """Make a key of an entry; without a default it is needed.

    allowed: Describes the allowed values where their type describes them badly.
    shown_default: Describes a default that is set later.
    bounds: Arguments of pydantic's `Field`. `examples` are values to write where a needed key is
        missing.
    """
    schema_extra: dict[str, str] = {}
    if allowed is not None:
        schema_extra["x-allowed"] = allowed
    if shown_default is not None:
        schema_extra["x-default"] = shown_default
    if schema_extra:
        bounds["json_schema_extra"] = schema_extra
    return Field(default, description=help, **bounds)


# Keys that several entries have.
seed_option = partial(
    option,
    "Random seed; by default the top-level `seed`.",
    0,
    ge=0,
    shown_default="top-level `seed`",
)
group_option = partial(
    option,
    "Label of a group of replicates, which differ in what they draw. Tables, figures and the "
    "report show the mean and spread of the group under it.",
    None,
)
replicates_option = partial(
    option,
    "Number of replicates: this entry and NAME.2, NAME.3 … in one `group`. They use the next "
    "seeds, or for texts the next documents. Studies that list NAME use all of them.",
    1,
    ge=1,
)


def read_leniently(value: Any, handler: pydantic.ValidatorFunctionWrapHandler) -> Any:
    """The value if it is valid, else what its text spells, if that is.

    YAML 1.1 reads `3e-4` as text, and Snakemake's `--config 'a={b: 1}'` passes every nested value
    as text.
    """
    try:
        return handler(value)
    except ValidationError:
        for reading in explain.possible_readings(value):
            try:
                return handler(reading)
            except ValidationError:
                continue
        raise


class Entry(BaseModel):
    """A part of the configuration with fixed keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True
    )

    # Keys that are not among the options of a job.
    ASIDE: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def kinds(cls) -> list[type[Self]]:
        """The kinds that an entry may be; none unless this is the base class of a `Choice`."""
        return []

    def options(self) -> dict[str, Any]:
        """The values for the parameters of a job, as JSON can hold them.

        Only those that differ from the defaults are among them, so a new option with its default
        changes no job. Nor does another default: delete what the old one made.
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

    _read = pydantic.field_validator("*", mode="wrap")(read_leniently)


class Choice(Entry):
    """An entry that is one of several kinds, which are the subclasses of a base class.

    For pydantic it is a tagged union. The kind is named by a key, such as `method: lora`, or by the
    keys that are there.
    """

    # The key whose value names the kind; if it is empty, the keys in `MARKS` decide.
    BY: ClassVar[str] = ""
    # The kind where that key is left out.
    USUAL: ClassVar[str | None] = None
    # Keys that only this kind has.
    MARKS: ClassVar[tuple[str, ...]] = ()
    # The package whose modules may define kinds.
    PACKAGE: ClassVar[str] = ""

    @classmethod
    def kinds(cls) -> list[type[Self]]:
        """The subclasses of a base class, in a package by their titles; none for a kind itself."""
        if Choice not in cls.__bases__:
            return []
        if not cls.PACKAGE:
            return cls.__subclasses__()
        _import_kinds(cls.PACKAGE, cls.__name__)
        return sorted(cls.__subclasses__(), key=lambda kind: kind.title())

    @classmethod
    def title(cls) -> str:
        """The name of a kind: what its key `BY` says, or the keys that mark it."""
        if cls.BY:
            return str(cls.model_fields[cls.BY].default)
        return " and ".join(f"`{key}`" for key in cls.MARKS)

    @classmethod
    def marked(cls, value: Mapping[str, Any]) -> list[type[Self]]:
        """The kinds whose marks are among the keys of an entry; exactly one if it is valid."""
        return [kind for kind in cls.kinds() if set(kind.MARKS) & set(value)]

    @classmethod
    def tag(cls, value: Any) -> str | None:
        """The title of the kind that an entry is meant to be; None if it does not say so."""
        if isinstance(value, cls):
            return value.title()
        entry = {} if value is None else value
        if not isinstance(entry, Mapping):
            return None
        if cls.BY:
            title = entry.get(cls.BY, cls.USUAL)
            return title if isinstance(title, str) else None
        marked_kinds = cls.marked(entry)
        return marked_kinds[0].title() if len(marked_kinds) == 1 else None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The entry with these `options`; those of a base class name the kind.

        A kind that was defined after the first validation is found too.

        Raises LaminaError as for any entry.
        """
        kind = cls.kind_of(cls.tag(options) or "")
        if kind is None:
            return super().from_options(options)
        return kind.from_options(options)

    @classmethod
    def kind_of(cls, title: str) -> type[Self] | None:
        """The kind of a base class with this title; None if there is none."""
        for kind in cls.kinds():
            if kind.title() == title:
                return kind
        return None

    def options(self) -> dict[str, Any]:
        """The options of an entry, after the key that names the kind."""
        entry_options = super().options()
        if not self.BY:
            return entry_options
        return {self.BY: self.title()} | entry_options

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        kinds = cls.kinds()
        if not kinds:
            return handler(source)
        tagged_kinds = [Annotated[kind, pydantic.Tag(kind.title())] for kind in kinds]
        kind_union: Any = Union[tuple(tagged_kinds)]  # noqa: UP007
        return handler.generate_schema(Annotated[kind_union, pydantic.Discriminator(cls.tag)])

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
    """Import those modules of a package that define a subclass of `base`, as their text says.

    Such a module must not import torch at its top, since the configuration is read without it.
    """
    subclass_pattern = re.compile(rf"^class \w+\((\w+, )*{base}\)", re.MULTILINE)
    package_folders = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(package_folders):
        name = f"{package}.{module.name}"
        spec = importlib.util.find_spec(name)
        file = Path(spec.origin or "") if spec else Path()
        if not module.ispkg and subclass_pattern.search(file.read_text("utf-8")):
            importlib.import_module(name)


def _check_named_entries(value: Any) -> Any:
    """Refuse keys of a mapping that cannot be names, or that file systems could confuse."""
    if not isinstance(value, Mapping):
        return {} if value is None else value
    name_by_lower_case: dict[str, str] = {}
    for name in value:
        _check_name(name)
        earlier_name = name_by_lower_case.setdefault(name.lower(), name)
        if earlier_name != name:
            raise invalid(
                f"'{earlier_name}' and '{name}' differ only in case, and many file systems treat "
                "them as one name. Rename one of the two.",
                name,
            )
    return dict(value)


def _check_name(name: object) -> None:
    """Refuse a name that is no text, reserved, or no part of a file name."""
    if not isinstance(name, str):
        raise invalid(
            f"YAML reads this name as something other than text. Quote it: '{name}'.", str(name)
        )
    if name in RESERVED:
        raise invalid(
            f"'{name}' is reserved (for the base model, or for no repair). Choose another name.",
            name,
        )
    if not _NAME_PATTERN.fullmatch(name):
        raise invalid(
            f"'{name}' cannot be a name, because names become parts of file names. Use only "
            "letters, digits and _ . + -, and begin with neither . nor -."
        )


def _check_document_range(text: str) -> str:
    if not re.fullmatch(r"[0-9]*:[0-9]*", text):
        raise ValueError
    first_document, end_document = document_range(text)
    if end_document is None or end_document > first_document:
        return text

    better_range = (
        f"{end_document}:{first_document}"
        if end_document < first_document
        else f"{first_document}:{first_document + 1}"
    )
    raise invalid(
        f'"{text}" holds no document, because its end is not after its start. Write a range such '
        f'as "{better_range}".'
    )


def document_range(documents: str | None) -> tuple[int, int | None]:
    """First document of a half-open range, and the one after its last (None: to the end)."""
    if documents is None:
        return 0, None
    first_text, _, end_text = documents.partition(":")
    return int(first_text or 0), int(end_text) if end_text else None


# Entries by names that the user chose.
Named = Annotated[dict[str, T], BeforeValidator(_check_named_entries)]
# Reads the entries of a list as `Entry` reads its keys.
Spelt = WrapValidator(read_leniently)
# Weights by name, such as {corpus: 0.1}.
Weights = Named[Annotated[float, Spelt, Field(gt=0)]]
# A number in a list of names is the name that was written.
Name = Annotated[str, Spelt]
Filled = Annotated[str, Field(min_length=1), Spelt]
# A folder or file of the user; ~ is the home folder.
UserPath = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
Documents = Annotated[str, AfterValidator(_check_document_range)]
DOCUMENTS_ALLOWED = 'a range in quotes such as "0:500", or null for all'


if TYPE_CHECKING:
    Options = Annotated[T, ...]
else:

    class Options:
        """`Options[Selector]` is an entry that the params of a job hold by its options."""

        def __class_getitem__(cls, entry_class: type[Entry]) -> Any:
            return Annotated[
                entry_class,
                pydantic.PlainSerializer(lambda entry: entry.options()),
                pydantic.PlainValidator(partial(_read_options, entry_class)),
            ]


def _read_options(entry_class: type[Entry], value: Any) -> Any:
    if isinstance(value, Mapping):
        return entry_class.from_options(value)
    return value

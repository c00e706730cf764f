"""A job as one object: the files that it reads and writes, its options, and the modules that it loads by name.

A rule makes the object from the configuration and the wildcards and hands it to its script as one JSON; the script
reads it and runs it. So a param of a rule is all that its script is told, and a change of it makes the job stale.

The classes are pydantic models, as the entries of the configuration are: frozen, without unknown keys, and read back
from JSON with their types. A field that has its default is left out of the JSON, so that a new option reruns nothing.
Such a default says that something is not asked for (None, empty, False). A number that a measurement depends on has no
default here: it stands in the configuration or in a module that the digest covers.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, PlainSerializer, PrivateAttr

from lamina import modules
from lamina.config.configuration import Configuration
from lamina.config.entry import Entry
from lamina.errors import LaminaError
from lamina.models.manifest import weights_gb
from lamina.runtime import contents
from lamina.runtime.fingerprint import code_digest, entry_digest, family_digest, package_digest
from lamina.store import checksum as seal
from lamina.study import paths

READ: Any = object()  # in the annotation of a field: it names files that the job reads

T = TypeVar("T")
if TYPE_CHECKING:
    Told = Annotated[T, ...]
else:

    class Told:
        """`Told[Selector]`: an entry of the configuration, told by its options that differ from the earlier values."""

        def __class_getitem__(cls, entry: type[Entry]) -> Any:
            return Annotated[
                InstanceOf[entry], PlainSerializer(lambda value: value.options()), BeforeValidator(partial(_of, entry))
            ]


def _of(kind: type[Entry], value: Any) -> Any:
    return kind.from_options(value) if isinstance(value, Mapping) else value


class Part(BaseModel):
    """A group of options of a job."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Job(Part):
    """What a rule says of one job. The name of its module is that of the rule and of the script.

    `OUTPUTS` has the paths that the rule writes, with wildcards, by the fields that hold them.
    """

    OUTPUTS: ClassVar[Mapping[str, str]] = {}
    # Whether another version of a package that the job imports makes it stale.
    PACKAGES: ClassVar[bool] = False
    # Fields that do not change the content of a row, so they are no part of its provenance.
    PLACED: ClassVar[tuple[str, ...]] = ()

    # Digests by name of what the job depends on and is not told: the family's entry, a metric's entry.
    follows: dict[str, str | None] = {}

    _code: str = PrivateAttr("")
    _text: str = PrivateAttr("")  # all that the job was told

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        """The job of a rule's wildcards `w`."""
        raise NotImplementedError

    @classmethod
    def rule(cls) -> str:
        """The name of the rule, and of its script."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def written(cls, w: Any) -> dict[str, Any]:
        """The paths of those `OUTPUTS` that are fields, for the wildcards `w`."""
        return {name: path.format(**w) for name, path in cls.OUTPUTS.items() if name in cls.model_fields}

    @property
    def inputs(self) -> dict[str, Any]:
        """The files that the job reads, by field; what is empty is left out."""
        read = {name: getattr(self, name) for name, field in type(self).model_fields.items() if READ in field.metadata}
        files = {name: list(value.values()) if isinstance(value, dict) else value for name, value in read.items()}
        return {name: value for name, value in files.items() if value}

    @property
    def sources(self) -> tuple[str, ...]:
        """Files that it reads and no job has made: anybody may edit them at any time."""
        return tuple(file for file in self._read if not file.startswith(f"{paths.RESULTS}/"))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the job loads by name."""
        return ()

    @property
    def described_by(self) -> tuple[str, ...]:
        """Modules that describe the tables that this job writes; the digests of other jobs leave them aside."""
        return ()

    def told(self) -> str:
        """The job as a rule hands it over, with the digests of its code, packages and data files."""
        named = (self.rule(), *self.modules, *self.described_by)
        message: dict[str, Any] = {"rule": self.rule(), "job": self._plain(), "code": code_digest(*named)}
        if self.PACKAGES:
            message["packages"] = package_digest(*named)
        if self.sources:
            message["sources"] = contents.digests(self.sources)
        return json.dumps(message, sort_keys=True)

    @classmethod
    def read(cls, arguments: Iterable[str] | None = None) -> Self:
        """The job that a script runs, from the file that its one argument names, or from standard input.

        From then on, the process loads only the job's own modules by name, and writes what it was told into its files.

        Raises
        ------
        LaminaError
            If no job is given, or a data file is not the one that the job was told of.
        """
        given = list(sys.argv[1:] if arguments is None else arguments)
        text = Path(given[0]).read_text(encoding="utf-8") if given else "" if sys.stdin.isatty() else sys.stdin.read()
        if not text.strip():
            raise LaminaError(
                f"{cls.rule()}: no job is given. The rule hands one over as JSON: `snakemake -n -p` prints it, and "
                f"`{cls.rule()}.py FILE` reads it from a file."
            )
        message = json.loads(text)
        job = cls.model_validate(message["job"])
        job._code, job._text = message.get("code", ""), text
        modules.declare(job.modules)
        seal.tell(text)
        contents.check(message.get("sources", {}))
        return job

    @property
    def heard(self) -> str:
        """All that the job was told, as `told` gives it to the rule."""
        return self._text

    @property
    def provenance(self) -> dict[str, str]:
        """What the job's files say of their origin: the digest of the code, a hash of what the job was told, its seed.

        The paths that it writes and its part of a sweep do not count.
        """
        aside = {*self.OUTPUTS, *self.PLACED, "follows"}
        options = {name: value for name, value in self._plain().items() if name not in aside}
        facts = {"code": self._code, "params": hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()}
        return facts | ({"seed": str(options["seed"])} if "seed" in options else {})

    @property
    def origin(self) -> str:
        """A hash of all that the job was told, and of size and time of the files that it reads. It names the job of
        unfinished work. The files themselves are not read: weights of healed variants are too large.
        """
        text = self._text or json.dumps(self._plain(), sort_keys=True)
        stats = [(file, Path(file).stat()) for file in self._read if Path(file).is_file()]
        stamps = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
        return hashlib.sha256(json.dumps([text, stamps]).encode()).hexdigest()

    @property
    def _read(self) -> list[str]:
        """All files that it reads."""
        return [file for value in self.inputs.values() for file in ([value] if isinstance(value, str) else value)]

    def _plain(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)


class OnModel(Job):
    """A job that loads a model, on a GPU where there is one."""

    PACKAGES = True

    manifest: Annotated[str, READ]
    check: Annotated[str | None, READ] = None  # what rule check_model found; no number follows from it

    def memory(self, attempt: int) -> int:
        """Megabytes of host memory: the libraries, the weights, and as much again where a stage changes them.

        Raises
        ------
        FileNotFoundError
            If the model is not prepared yet; Snakemake asks again once it is. The same holds for `minutes`.
        """
        return round(attempt * (3000 + 2000 * weights_gb(self._described())))

    def minutes(self, attempt: int) -> int:
        """Time limit: loading and measuring grow with the weights."""
        return minutes(self._described(), attempt)

    def _described(self) -> dict[str, Any]:
        return seal.read_json(self.manifest)


def minutes(model: Mapping[str, Any], attempt: int, variants: int = 0) -> int:
    """Time limit of a job that goes through this number of variants of a model."""
    return round(attempt * (20 + 6 * weights_gb(model) * (1 + variants / 4)))


def family(config: Configuration, model: str) -> dict[str, str | None]:
    """What a job on a model follows: the entry of its family."""
    return {"family": family_digest(config.models[model].family)}


def entries(**named: Any) -> dict[str, str | None]:
    """The digests of entries of a registry, by the names given to them."""
    return {name: entry_digest(entry) for name, entry in named.items()}

"""A job of a rule: its options from the configuration, the fingerprint of its code, and what it needs of the machine.

A rule names the files in sight. The class of its job gives the rest: `of` reads the options of one job from the
configuration, and its fields are all that the job depends on beside its files. In the script, `read` puts the rule's
files into the fields of the same names.

The classes are pydantic models, as the entries of the configuration are: frozen, without unknown keys, and read back
from JSON with their types. An option that has its default is left out of the params of a rule, so that a new option
reruns nothing. Such a default says that something is not asked for (None, empty, False).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_origin

from pydantic import BaseModel, ConfigDict, PrivateAttr

from lamina import modules
from lamina.config.configuration import Configuration
from lamina.runtime.fingerprint import code_digest, entry_digest, family_digest, package_digest
from lamina.store import checksum
from lamina.tables import table_digest

READ: Any = (
    object()
)  # in the annotation of a field: files that the job reads, the rule's input of that name
WRITTEN: Any = object()  # the file that it writes, the rule's output of that name


class Job(BaseModel):
    """What a rule says of one job. The class has the name of the rule: SweepUnits for sweep_units."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Whether another version of a package that the job imports makes it stale.
    PACKAGES: ClassVar[bool] = False
    # Options that do not change the content of a row, so they are no part of its provenance.
    ASIDE: ClassVar[tuple[str, ...]] = ()
    # Modules that other jobs do not follow, and that are part of this job's code; so are the schemas of what it writes.
    FOLLOWED: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()

    # Digests by name of what the job depends on and that is no option: the family's entry, a metric's entry.
    follows: dict[str, str | None] = {}
    output: Annotated[str, WRITTEN] = ""

    _facts: dict[str, Any] = PrivateAttr(
        default_factory=dict
    )  # what `read` was given, for `make explain`

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        """The options of the job with the wildcards `w`: those of a field's name, unless a class says otherwise."""
        return cls(
            **{
                name: value
                for name, value in w.items()
                if name in cls.model_fields.keys() - cls._files()
            }
        )

    @classmethod
    def rule(cls) -> str:
        """The name of the rule, and of its script."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the job loads by name."""
        return ()

    @property
    def writes(self) -> tuple[str, ...]:
        """The tables whose schemas are part of this job's code."""
        return self.WRITES

    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as JSON has them."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude=self._files())

    def code(self) -> str:
        """The fingerprint of the code that the job can reach, and of the packages that this code imports."""
        writer = ("lamina.store.parquet",) if self.writes else ()
        named = (self.rule(), *self.modules, *self.FOLLOWED, *writer)
        packages = package_digest(*named) if self.PACKAGES else ""
        tables = table_digest(*self.writes) if self.writes else ""
        return hashlib.sha256((code_digest(*named) + packages + tables).encode()).hexdigest()

    @classmethod
    def read(cls, snakemake: Any) -> Self:
        """The job that a script runs, from the object that Snakemake gives a script.

        From then on, the process loads only the job's own modules by name, and writes into its files where they come
        from: rule, wildcards, inputs, options and the fingerprint of the code.
        """
        options = dict(snakemake.params.options)
        files = {name: cls._given(name, snakemake) for name in cls._files()}
        job = cls.model_validate(options | {name: value for name, value in files.items() if value})
        inputs = {
            name: value for name, value in files.items() if value and name in cls._marked(READ)
        }
        facts = {
            "rule": cls.rule(),
            "wildcards": dict(snakemake.wildcards.items()),
            "inputs": inputs,
        }
        facts |= {"options": options, "code": snakemake.params.code}
        if content := snakemake.params.get("content"):
            facts["content"] = content
        job._facts.update(facts)
        modules.declare(job.modules)
        checksum.set_origin(json.dumps(facts, sort_keys=True))
        return job

    @property
    def provenance(self) -> dict[str, str]:
        """What the job's files say of their origin: the fingerprint of its code, a hash of its options, its seed."""
        options = {
            name: value
            for name, value in self.options().items()
            if name not in {*self.ASIDE, "follows"}
        }
        hashed = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
        facts = {"code": str(self._facts.get("code", "")), "params": hashed}
        return facts | ({"seed": str(options["seed"])} if "seed" in options else {})

    @property
    def origin(self) -> str:
        """A hash of all that the job depends on, with size and time of its files. It names the job of unfinished work.

        The files themselves are not read: weights of healed variants are too large.
        """
        text = json.dumps(self._facts or self.options(), sort_keys=True)
        listed = [getattr(self, name) for name in sorted(self._marked(READ))]
        paths = [Path(file) for value in listed for file in _listed(value) if Path(file).is_file()]
        stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
        return hashlib.sha256(json.dumps([text, stamps]).encode()).hexdigest()

    @classmethod
    def _marked(cls, mark: Any) -> set[str]:
        return {name for name, field in cls.model_fields.items() if mark in field.metadata}

    @classmethod
    def _files(cls) -> set[str]:
        return cls._marked(READ) | cls._marked(WRITTEN)

    @classmethod
    def _given(cls, name: str, snakemake: Any) -> Any:
        """The rule's files of a field: one, a list, or by the names of what they are of."""
        named = snakemake.output if name in cls._marked(WRITTEN) else snakemake.input
        value = getattr(named, name, None)
        if value is None:
            return None
        kind = get_origin(cls.model_fields[name].annotation)
        files = _listed(value)
        if kind is dict:
            return {_name(Path(file)): file for file in files}
        return files if kind is list else (files[0] if files else None)


def _name(file: Path) -> str:
    """What a file is of: a calibration's has its name, a model's manifest stands in a folder of the model's name."""
    return file.parent.name if file.stem == "manifest" else file.stem


def _listed(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return list(value.values())
    return [value] if isinstance(value, str) else [str(file) for file in value or ()]


class OnModel(Job):
    """A job that loads a model, on a GPU where there is one."""

    PACKAGES = True

    manifest: Annotated[str, READ] = ""
    check: Annotated[str | None, READ] = (
        None  # what rule check_model found; no number follows from it
    )

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """Megabytes of host memory: the libraries, the weights, and as much again where a stage changes them.

        `model` is the manifest of the model.
        """
        return round(attempt * (3000 + 2000 * model["weights_bytes"] / 1e9))

    def minutes(self, model: Mapping[str, Any], attempt: int) -> int:
        """Time limit: loading and measuring grow with the weights."""
        return minutes(model, attempt)


def minutes(model: Mapping[str, Any], attempt: int, variants: int = 0) -> int:
    """Time limit of a job that loads a model and goes through this number of variants of it."""
    return round(attempt * (20 + 6 * model["weights_bytes"] / 1e9 * (1 + variants / 4)))


def family(config: Configuration, model: str) -> dict[str, str | None]:
    """What a job on a model follows: the entry of its family."""
    return {"family": family_digest(config.models[model].family)}


def entries(**named: Any) -> dict[str, str | None]:
    """The digests of entries of a registry, by the names given to them."""
    return {name: entry_digest(entry) for name, entry in named.items()}


class Place(dict[str, str]):
    """Wildcards, by attribute and by key."""

    __getattr__ = dict.__getitem__

"""A job of a rule: its options, the fingerprint of its code, and the resources that it needs.

The rule shows the files. The class of its job holds everything else: `of` reads the options of one
job from the configuration, and the fields are all that the job depends on apart from the content of
its files. In the script, `read` puts the rule's files into the fields of the same names.

Like the entries of the configuration, the classes are pydantic models: frozen, without unknown
keys, and read back from JSON with their types. An option with its default value is left out of a
rule's params, so that a new option reruns nothing. Therefore a default must mean that something is
not requested (None, empty, False).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_origin

from pydantic import BaseModel, ConfigDict, PrivateAttr

from lamina.tables import table_digest
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.runtime.fingerprint import (
    code_digest,
    entry_digest,
    family_digest,
    package_digest,
)

# Marks in the annotation of a field: files that the job reads (the rule's input of that name), and
# the file that it writes (the rule's output of that name).
READ: Any = object()
WRITTEN: Any = object()


class Job(BaseModel):
    """What a rule says about one job. The class is named after the rule: SweepUnits, sweep_units.

    PACKAGES: Whether another version of an imported package makes the job stale.
    ASIDE: Options that do not change the content of rows, so they are not part of the provenance.
    FOLLOWED: Modules that count as part of this job's code, but not of other jobs'.
    WRITES: The tables that it writes, whose schemas are part of its code.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    PACKAGES: ClassVar[bool] = False
    ASIDE: ClassVar[tuple[str, ...]] = ()
    FOLLOWED: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()

    # Digests by name of dependencies that are not options: the entry of the model's family, the
    # entry of a metric.
    follows: dict[str, str | None] = {}
    output: Annotated[str, WRITTEN] = ""

    # Identifies the job within its rule. Empty unless a script runs it.
    _facts: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        """The options of the job with the wildcards `w`.

        By default, each field takes the wildcard of the same name.
        """
        option_names = cls.model_fields.keys() - cls._files()
        return cls(**{name: value for name, value in w.items() if name in option_names})

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
        """The options that differ from their defaults, as JSON values."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude=self._files())

    def code(self) -> str:
        """The fingerprint of the code that the job can reach, and of the packages it imports."""
        writer = ("lamina.store.parquet",) if self.writes else ()
        module_names = (self.rule(), *self.modules, *self.FOLLOWED, *writer)
        packages = package_digest(*module_names) if self.PACKAGES else ""
        tables = table_digest(*self.writes) if self.writes else ""
        digests = code_digest(*module_names) + packages + tables
        return hashlib.sha256(digests.encode()).hexdigest()

    @classmethod
    def read(cls, snakemake: Any) -> Self:
        """The job that a script runs, read from the script's object `snakemake`."""
        options = dict(snakemake.params.options)
        files = {}
        for name in cls._files():
            files_of_field = cls._files_of_field(name, snakemake)
            if files_of_field:
                files[name] = files_of_field
        job = cls.model_validate(options | files)
        job._facts.update(cls._describe(snakemake, options, files))
        return job

    @classmethod
    def _describe(
        cls, snakemake: Any, options: dict[str, Any], files: dict[str, Any]
    ) -> dict[str, Any]:
        """A job's rule, wildcards, inputs, options and code fingerprint."""
        facts = {
            "rule": cls.rule(),
            "wildcards": dict(snakemake.wildcards.items()),
            "inputs": {name: files[name] for name in files if name in cls._marked(READ)},
            "options": options,
            "code": snakemake.params.code,
        }
        content = snakemake.params.get("content")
        if content:
            facts["content"] = content
        return facts

    @property
    def description(self) -> str:
        """Which job of the rule it is, as JSON; its files keep it for `make explain`."""
        return json.dumps(self._facts, sort_keys=True) if self._facts else ""

    @property
    def provenance(self) -> dict[str, str]:
        """What the job's tables record about their origin: `settings`, and its `description`."""
        return self.settings | ({"job": self.description} if self.description else {})

    @property
    def settings(self) -> dict[str, str]:
        """What determines the content of rows, apart from the job's files.

        These are the fingerprint of its code, a hash of its options, and its seed.
        """
        not_hashed = {*self.ASIDE, "follows"}
        options = {name: value for name, value in self.options().items() if name not in not_hashed}
        params = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
        settings = {"code": str(self._facts.get("code", "")), "params": params}
        if "seed" in options:
            settings["seed"] = str(options["seed"])
        return settings

    @property
    def origin(self) -> str:
        """A hash of everything that the job depends on, with the size and time of its files.

        It identifies unfinished work. The files themselves are not read, because the weights of
        healed variants are too large.
        """
        text = json.dumps(self._facts or self.options(), sort_keys=True)
        stamps = []
        for name in sorted(self._marked(READ)):
            for path in map(Path, _listed(getattr(self, name))):
                if path.is_file():
                    stat = path.stat()
                    stamps.append((str(path), stat.st_size, stat.st_mtime_ns))
        return hashlib.sha256(json.dumps([text, stamps]).encode()).hexdigest()

    @classmethod
    def _marked(cls, mark: Any) -> set[str]:
        """The fields with READ or WRITTEN in their annotations."""
        return {name for name, field in cls.model_fields.items() if mark in field.metadata}

    @classmethod
    def _files(cls) -> set[str]:
        return cls._marked(READ) | cls._marked(WRITTEN)

    @classmethod
    def _files_of_field(cls, name: str, snakemake: Any) -> Any:
        """The rule's files for a field: one file, a list, or a mapping by name."""
        rule_files = snakemake.output if name in cls._marked(WRITTEN) else snakemake.input
        files = _listed(getattr(rule_files, name, None))
        field_type = get_origin(cls.model_fields[name].annotation)
        if field_type is dict:
            return {_name_of(Path(file)): file for file in files}
        if field_type is list:
            return files
        return files[0] if files else None


def _name_of(file: Path) -> str:
    """What a file belongs to: its own name for a calibration, its model's folder for a manifest."""
    return file.parent.name if file.stem == "manifest" else file.stem


def _listed(files: Any) -> list[str]:
    """The files of a field or of a rule's input, which may be one, several, or none."""
    if isinstance(files, Mapping):
        return list(files.values())
    if isinstance(files, str):
        return [files]
    return [str(file) for file in files or ()]


class OnModel(Job):
    """A job that loads a model, on a GPU if there is one."""

    PACKAGES = True

    manifest: Annotated[str, READ] = ""
    # The findings of rule check_model; no number depends on them.
    check: Annotated[str | None, READ] = None

    def memory(self, model: Mapping[str, Any], attempt: int) -> int:
        """Megabytes of host memory: the libraries, and twice the weights, which a stage may change.

        model: The manifest of the model.
        """
        return round(attempt * (3000 + 2000 * model["weights_bytes"] / 1e9))

    def minutes(self, model: Mapping[str, Any], attempt: int) -> int:
        """Time limit: loading and measuring take longer with larger weights."""
        return time_limit(model, attempt)


def time_limit(model: Mapping[str, Any], attempt: int, variants: int = 0) -> int:
    """Time limit of a job that loads a model and processes this number of its variants."""
    return round(attempt * (20 + 6 * model["weights_bytes"] / 1e9 * (1 + variants / 4)))


def follow_family(config: Configuration, model: str) -> dict[str, str | None]:
    """The digest of a model's family entry, on which its jobs depend."""
    return {"family": family_digest(config.models[model].family)}


def follow_entries(**registered: Any) -> dict[str, str | None]:
    """The digests of entries of a registry, by the names given to them."""
    return {name: entry_digest(entry) for name, entry in registered.items()}


class Wildcards(dict[str, str]):
    """Wildcards, by attribute and by key."""

    __getattr__ = dict.__getitem__

"""Check that every name used in an entry or a study is defined and has only one meaning."""

from collections.abc import Collection, Iterable

from lamina.errors import LaminaError
from lamina.options.calibrations import Mixture
from lamina.options.explain import suggest
from lamina.options.repairs import OWN
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Gate, Prune, Study


def check_defined(entry_key: str, name: str, section: str, known_names: Collection[str]) -> None:
    """Refuse a name, used at `entry_key`, that is not among the known names of a section."""
    if name in known_names:
        return
    raise LaminaError(
        f"{entry_key}: '{name}' is not defined under `{section}`. {suggest(name, known_names)} "
        "Correct the name, or define it there."
    )


def check_entries(config: Configuration) -> None:
    """Refuse undefined names in entries, mixtures of mixtures, and an ambiguous `own`.

    Raises LaminaError, whose message names the key.
    """
    _check_donors(config)
    _check_mixtures(config)
    _check_selector_calibrations(config)
    _check_training_data(config)


def _check_donors(config: Configuration) -> None:
    for name, selector in config.selectors.items():
        for donor in selector.donors:
            check_defined(f"selectors.{name}.donors", donor, "donors", config.donors)


def _check_mixtures(config: Configuration) -> None:
    for name, mixture in config.calibrations.items():
        if not isinstance(mixture, Mixture):
            continue
        entry_key = f"calibrations.{name}.mixture"
        for mixed_name in mixture.mixture:
            check_defined(entry_key, mixed_name, "calibrations", config.calibrations)
            if isinstance(config.calibrations[mixed_name], Mixture):
                raise LaminaError(
                    f"{entry_key}: '{mixed_name}' is a mixture itself. Name the calibrations that "
                    "it mixes."
                )


def _check_selector_calibrations(config: Configuration) -> None:
    for name, selector in config.selectors.items():
        for calibration in selector.also:
            check_defined(
                f"selectors.{name}.also", calibration, "calibrations", config.calibrations
            )
        if selector.judge:
            check_defined(
                f"selectors.{name}.judge", selector.judge, "calibrations", config.calibrations
            )


def _check_training_data(config: Configuration) -> None:
    """Refuse unknown calibrations in the `data` of repairs and healings."""
    names_by_key: dict[str, Iterable[str]] = {}
    for name, repair in config.repairs.items():
        names_by_key[f"repairs.{name}.data"] = list(repair.data)
    for name, healing in config.healings.items():
        names_by_key[f"healings.{name}.data"] = list(healing.weights(OWN))

    known_names = [OWN, *config.calibrations]
    for entry_key, calibrations in names_by_key.items():
        for calibration in calibrations:
            check_defined(entry_key, calibration, "calibrations", known_names)

    if OWN not in config.calibrations:
        return
    for entry_key, calibrations in names_by_key.items():
        if len(list(calibrations)) > 1:
            raise LaminaError(
                f"calibrations.{OWN}: in {entry_key}, '{OWN}' means the variant's own calibration. "
                "Give this calibration another name."
            )


def check_benchmark_names(config: Configuration) -> None:
    """Refuse a perplexity text with the same name as a task."""
    for name in config.benchmarks.perplexity:
        if name in config.benchmarks.tasks:
            raise LaminaError(
                f"benchmarks.perplexity.{name}: '{name}' is also a task under benchmarks.tasks, "
                "and both would write the same files. Rename one of them, for example "
                f"'{name}_text'."
            )


def check_study(config: Configuration, entry_key: str, study: Study) -> None:
    """Refuse undefined names in the lists of a study."""
    _check_listed(entry_key, "models", study.models, "models", config.models)
    _check_listed(
        entry_key, "calibrations", study.calibrations, "calibrations", config.calibrations
    )
    _check_listed(entry_key, "diagnoses", study.diagnoses, "diagnoses", config.diagnoses)
    if not isinstance(study, Prune):
        return
    tasks = config.benchmarks.tasks
    texts = config.benchmarks.perplexity
    _check_listed(entry_key, "selectors", study.selectors, "selectors", config.selectors)
    _check_listed(entry_key, "repairs", study.repairs, "repairs", ["none", *config.repairs])
    _check_listed(entry_key, "healings", study.healings, "healings", ["none", *config.healings])
    _check_listed(entry_key, "tasks", study.tasks, "benchmarks.tasks", tasks)
    _check_listed(entry_key, "perplexity", study.perplexity, "benchmarks.perplexity", texts)
    _check_gates(f"{entry_key}.gates", study.gates, tasks, texts)


def _check_gates(
    entry_key: str, gates: Iterable[Gate], tasks: Collection[str], texts: Collection[str]
) -> None:
    """Refuse gates on undefined tasks, and a least value for a perplexity."""
    for index, gate in enumerate(gates):
        gate_key = f"{entry_key}[{index}]"
        check_defined(f"{gate_key}.task", gate.task, "benchmarks", [*tasks, *texts])
        if gate.floor is not None and gate.task in texts:
            raise LaminaError(
                f"{gate_key}.floor: '{gate.task}' is measured as a perplexity, where lower is "
                "better. Write a share of the base model's instead, such as keep: 90%."
            )


def _check_listed(
    entry_key: str,
    key: str,
    listed_names: Iterable[str] | str,
    section: str,
    known_names: Collection[str],
) -> None:
    """Refuse undefined names in one list of a study. A word such as `all` is not a name."""
    if isinstance(listed_names, str):
        return
    for name in listed_names:
        check_defined(f"{entry_key}.{key}", name, section, known_names)

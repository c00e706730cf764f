"""Check that a study's repairs, healings and benchmarks fit its selectors and calibrations."""

from lamina.errors import LaminaError
from lamina.options.calibrations import Choices
from lamina.options.explain import suggest
from lamina.options.repairs import Repair
from lamina_workflow.checks.names import check_defined
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Prune


def check_repairs_in_loop(config: Configuration) -> None:
    """Refuse repairs of selectors that cannot be in place while units are scored.

    Raises LaminaError, whose message names the key of the selector.
    """
    for selector_name, selector in config.selectors.items():
        key = "repairs" if selector.repairs else "repair"
        for name in [selector.repair, *selector.repairs]:
            if name:
                _check_repair_in_loop(config, f"selectors.{selector_name}.{key}", key, name)


def _check_repair_in_loop(config: Configuration, entry_key: str, key: str, name: str) -> None:
    check_defined(entry_key, name, "repairs", config.repairs)
    repair = config.repairs[name]

    if not repair.LINEAR:
        raise LaminaError(
            f"{entry_key}: '{name}' uses method '{repair.method}', which is not a linear map of "
            "the stream and so cannot be in place while units are scored. Name a repair of method "
            f"{Repair.of_stream()}, or leave `{key}` out."
        )

    if repair.chain:
        raise LaminaError(
            f"{entry_key}: '{name}' has `refit: true`, so its patches depend on the plan, but a "
            "repair that is in place while units are scored must serve all candidates. Name a "
            f"repair without `refit` here, and list '{name}' under the study's repairs."
        )


def check_folded_repairs(config: Configuration, entry_key: str, study: Prune) -> None:
    """Refuse repairs that are folded into weights in a study that removes sub-layers."""
    folded_repairs = [
        name for name in study.repairs if name != "none" and not config.repairs[name].LINEAR
    ]
    if not folded_repairs:
        return
    for name in study.selectors:
        units = config.selectors[name].units
        if units != "layer":
            raise LaminaError(
                f"{entry_key}.repairs: '{folded_repairs[0]}' is folded into weights before removed "
                f"layers, but selector '{name}' removes {units} units. List repairs of method "
                f"{Repair.of_stream()} in this study, or write units: layer in selectors.{name}."
            )


def check_trained_patches(config: Configuration, entry_key: str, study: Prune) -> None:
    """Refuse a healing that trains a repair's patches if a repair of the study leaves none."""
    for healing in study.healings:
        if healing == "none" or not config.healings[healing].trains_patches:
            continue
        for repair in study.repairs:
            if repair != "none" and config.repairs[repair].LINEAR:
                continue
            reason = "is no repair" if repair == "none" else "is folded into weights"
            raise LaminaError(
                f"{entry_key}.healings: '{healing}' trains the patches of the repair, but "
                f"'{repair}' {reason} and leaves no patch. List only repairs of method "
                f"{Repair.of_stream()} in this study and the others in another one, or write "
                f"train: lora in healings.{healing}."
            )


def check_own_tasks(config: Configuration, entry_key: str, study: Prune) -> None:
    """Refuse `tasks: own` if nothing would measure the variants of a calibration."""
    if study.tasks != "own" or study.gates:
        return
    measures_text = bool(study.perplexity)
    if study.perplexity == "all":
        measures_text = bool(config.benchmarks.perplexity)

    for name in study.calibrations:
        # A text has no task of its own. If perplexity is measured, its variants are measured.
        if config.is_text(name) and measures_text:
            continue
        if config.own_tasks(name):
            continue
        raise LaminaError(f"{entry_key}.tasks: {_describe_lacking_task(config, name)}")


def _describe_lacking_task(config: Configuration, calibration: str) -> str:
    """Say which benchmark task a calibration lacks, and what to write."""
    task_names: list[str] = []
    for name, entry in config.parts(calibration).items():
        task_names += [name] if isinstance(entry, Choices) else entry.drawn

    missing_task = "belongs to it."
    if task_names:
        quoted_names = " or ".join(repr(name) for name in task_names)
        missing_task = (
            f"is called {quoted_names}. {suggest(task_names[0], config.benchmarks.tasks)}"
        )
    return (
        f"'own' measures nothing for calibration '{calibration}': no task under `benchmarks.tasks` "
        f"{missing_task} Add it there (own questions under the name of their calibration), or "
        "write tasks: all."
    )

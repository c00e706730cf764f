"""Whether the repairs, healings and benchmarks of a study fit its selectors and calibrations."""

from lamina.errors import LaminaError
from lamina.options.calibrations import Choices
from lamina.options.explain import suggest
from lamina.options.repairs import Repair
from lamina_workflow.checks.names import check_defined
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Prune


def check_repairs_in_loop(config: Configuration) -> None:
    """Refuse repairs of selectors that cannot be in place while units are scored.

    Raises LaminaError, which names the key of the selector.
    """
    for selector_name, selector in config.selectors.items():
        key = "repairs" if selector.repairs else "repair"
        for name in [selector.repair, *selector.repairs]:
            if name:
                _check_repair_in_loop(config, f"selectors.{selector_name}.{key}", key, name)


def _check_repair_in_loop(config: Configuration, where: str, key: str, name: str) -> None:
    check_defined(where, name, "repairs", config.repairs)
    repair = config.repairs[name]

    if not repair.LINEAR:
        raise LaminaError(
            f"{where}: '{name}' uses method '{repair.method}', which is not a linear map of the "
            "stream and so cannot be in place while units are scored. Name a repair of method "
            f"{Repair.of_stream()}, or leave `{key}` out."
        )

    if repair.chain:
        raise LaminaError(
            f"{where}: '{name}' has `refit: true`, so its patches depend on the plan, but a repair "
            "that is in place while units are scored must serve all candidates. Name a repair "
            f"without `refit` here, and list '{name}' under the study's repairs."
        )


def check_folded_repairs(config: Configuration, where: str, study: Prune) -> None:
    """Refuse repairs that are folded into weights in a study that removes sub-layers."""
    folded = [name for name in study.repairs if name != "none" and not config.repairs[name].LINEAR]
    if not folded:
        return
    for name in study.selectors:
        units = config.selectors[name].units
        if units != "layer":
            raise LaminaError(
                f"{where}.repairs: '{folded[0]}' is folded into weights before removed layers, but "
                f"selector '{name}' removes {units} units. List repairs of method "
                f"{Repair.of_stream()} in this study, or write units: layer in selectors.{name}."
            )


def check_trained_patches(config: Configuration, where: str, study: Prune) -> None:
    """Refuse a healing that trains the patches of a repair where a repair leaves none."""
    for healing in study.healings:
        if healing == "none" or not config.healings[healing].trains_patches:
            continue
        for repair in study.repairs:
            if repair != "none" and config.repairs[repair].LINEAR:
                continue
            reason = "is no repair" if repair == "none" else "is folded into weights"
            raise LaminaError(
                f"{where}.healings: '{healing}' trains the patches of the repair, but '{repair}' "
                f"{reason} and leaves no patch. List only repairs of method {Repair.of_stream()} "
                "in this study and the others in another one, or write train: lora in "
                f"healings.{healing}."
            )


def check_own_tasks(config: Configuration, where: str, study: Prune) -> None:
    """Refuse `tasks: own` where nothing would measure the variants of a calibration."""
    if study.tasks != "own":
        return
    measures_text = bool(study.perplexity)
    if study.perplexity == "all":
        measures_text = bool(config.benchmarks.perplexity)

    for name in study.calibrations:
        # Text has no task of its own; where perplexity is measured, its variants are measured.
        if config.is_text(name) and measures_text:
            continue
        if config.own_tasks(name):
            continue
        raise LaminaError(f"{where}.tasks: {_describe_lacking_task(config, name)}")


def _describe_lacking_task(config: Configuration, calibration: str) -> str:
    """Say which benchmark task is missing for a calibration, and what to write."""
    task_names: list[str] = []
    for name, entry in config.parts(calibration).items():
        task_names += [name] if isinstance(entry, Choices) else entry.drawn

    lacking = "belongs to it."
    if task_names:
        quoted = " or ".join(repr(name) for name in task_names)
        lacking = f"is called {quoted}. {suggest(task_names[0], config.benchmarks.tasks)}"
    return (
        f"'own' measures nothing for calibration '{calibration}': no task under `benchmarks.tasks` "
        f"{lacking} Add it there (own questions under the name of their calibration), or write "
        "tasks: all."
    )

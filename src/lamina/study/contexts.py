"""Checks that texts, windows of perplexity and prompts of efficiency fit into the context of each model."""

from collections.abc import Mapping

from lamina.config.calibrations import Hub, Text
from lamina.config.configuration import Configuration
from lamina.config.repairs import OWN
from lamina.config.studies import Prune, Study
from lamina.models.context import check_fits, check_generation


def check_contexts(config: Configuration, limits: Mapping[str, int | None]) -> None:
    """Refuse texts and prompts that are longer than the context of a model in a study.

    `limits` are contexts by model, or None where a context is not known here: jobs check hub models. Questions that are
    longer are no error: they are cut from the left, as lm-eval does.

    Raises
    ------
    LaminaError
        If one is too long; the message names the key, its tokens, the model and its context.
    """
    for study in config.studies.values():
        for model in study.models:
            limit = limits.get(model)
            _check_calibrations(config, study, model, limit)
            if isinstance(study, Prune):
                # The unpruned model is measured on every text, whichever the study names.
                for name, text in config.benchmarks.perplexity.items():
                    check_fits(f"benchmarks.perplexity.{name}.window", text.window, limit, model)
                if efficiency := config.benchmarks.efficiency:
                    check_generation(efficiency.prompt, efficiency.generate, limit, model)


def _check_calibrations(config: Configuration, study: Study, model: str, limit: int | None) -> None:
    mending = {
        *getattr(study, "repairs", []),
        *(config.selectors[s].repair for s in getattr(study, "selectors", [])),
    }
    healing = set(getattr(study, "healings", [])) - {"none"}
    added = {name for each in mending - {"none", None} for name in config.repairs[each].data}
    added |= {name for each in healing for name in config.healings[each].weights(OWN)}
    added |= {name for s in getattr(study, "selectors", []) for name in config.selectors[s].also}
    added -= {OWN}
    for name in [*study.calibrations, *sorted(added.difference(study.calibrations))]:
        for part, entry in config.parts(name).items():
            if isinstance(entry, Text | Hub):
                check_fits(f"calibrations.{part}.length", entry.length, limit, model)

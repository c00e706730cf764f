"""Load the configuration and check it completely before anything runs.

An entry that is known to fail later is refused here, with the key, its value and what to write
instead.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lamina.errors import LaminaError
from lamina.models.sizes import Sizes
from lamina.options.explain import describe_error
from lamina.options.models import Model
from lamina_workflow.checks import files, held_out, names, removals, variants, written
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.replicates import add_replicates, expand_checkpoints, expand_healings
from lamina_workflow.config.studies import Prune


def load_configuration(raw: Mapping[str, Any], root: Path) -> Configuration:
    """The configuration with defaults filled in. Relative paths are resolved against `root`.

    Filled in are: the top-level seed in entries without one, replicates next to the entries that
    they repeat, the models of a series of checkpoints in place of the series, healings of single
    passes, layers and family of a local model, and the stride of a perplexity. Loading `plain()` of
    the result gives the same result.

    Raises LaminaError if something cannot run; the message names the key, its value and the remedy.
    """
    if "studies" in raw and not raw["studies"]:
        raise LaminaError(
            "studies: there is no study, so there is nothing to run. Add one, such as "
            "`maps: {models: [...], calibrations: [...], metrics: [accuracy, cosine]}`."
        )
    try:
        config = Configuration.model_validate(dict(raw))
    except ValidationError as error:
        raise describe_error(Configuration, error, raw) from None

    _fill_in(config, root)
    _check(config, root)
    return config


def _fill_in(config: Configuration, root: Path) -> None:
    """Add what follows from other entries and from the models' folders."""
    expand_checkpoints(config)
    expand_healings(config)
    _add_siblings_to_models(config)
    _fill_in_seeds(config)
    add_replicates(config)
    for name, model in config.models.items():
        config.models[name] = files.describe_model(files.model_key(config, name), model, root)
    for name, text in config.benchmarks.perplexity.items():
        stride = text.stride or text.window
        config.benchmarks.perplexity[name] = text.model_copy(update={"stride": stride})


def _check(config: Configuration, root: Path) -> None:
    names.check_entries(config)
    held_out.check_held_out(config, root)
    names.check_benchmark_names(config)
    variants.check_repairs_in_loop(config)
    sizes_by_model: dict[str, Sizes | None] = {}
    for name, study in config.studies.items():
        entry_key = f"studies.{name}"
        names.check_study(config, entry_key, study)
        if isinstance(study, Prune):
            variants.check_folded_repairs(config, entry_key, study)
            variants.check_trained_patches(config, entry_key, study)
            variants.check_own_tasks(config, entry_key, study)
            removals.check_removed(config, entry_key, study, root, sizes_by_model)
    files.check_files(config, root)
    written.check_written_answers(config, root)


def _add_siblings_to_models(config: Configuration) -> None:
    """Add the siblings to the models, so that they are prepared too.

    A study uses a sibling as a model only if it lists it.
    """
    for name, donor in config.donors.items():
        model = Model(**donor.model_dump())
        namesake = config.models.setdefault(name, model)
        if (namesake.source, namesake.revision) != (model.source, model.revision):
            raise LaminaError(
                f"donors.{name}: '{name}' is also the name of another model under `models`. Rename "
                "one of the two."
            )


def _fill_in_seeds(config: Configuration) -> None:
    sections: list[dict[str, Any]] = [
        config.calibrations,
        config.selectors,
        config.healings,
        config.diagnoses,
    ]
    for section in sections:
        for name, entry in section.items():
            if "seed" in type(entry).model_fields and "seed" not in entry.model_fields_set:
                section[name] = entry.model_copy(update={"seed": config.seed})

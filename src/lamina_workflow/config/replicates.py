"""Expand entries that stand for several.

`replicates: n` turns one entry into a group of n entries. Their random draws differ, and tables
average over them. `checkpoints` turns a model into one per checkpoint of its training, also in the
lists of studies:

    models:
      pythia:
        source: EleutherAI/pythia-1b
        revision: "step{checkpoint}"
        layers: 16
        checkpoints: [1000, 143000]

makes two models, `pythia-1000` and `pythia-143000`, and a study of `pythia` has both. The
`checkpoints` of a healing are passes of its training whose weights are tested as well:

    healings:
      lora: {method: lora, epochs: 10, checkpoints: [1, 5]}

makes two healings next to `lora`: `lora-1` and `lora-5`, with `keep: 1` and `keep: 5`.
"""

import re
from typing import Any

from lamina.errors import LaminaError
from lamina.options.calibrations import Calibration
from lamina.options.entry import document_range
from lamina.options.models import CHECKPOINT_FIELD, Model
from lamina.options.selectors import Selector
from lamina_workflow.config.configuration import Configuration


def add_replicates(config: Configuration) -> None:
    """Add the replicates of every entry to its section and to the studies that list it.

    The first replicate is the entry itself, so that more replicates only add jobs. The others,
    `NAME.2`, `NAME.3` …, have the next seeds, or for texts the next documents. The seeds must be
    filled in already.

    Raises LaminaError if all replicates would be equal, or a name is taken.
    """
    calibrations: dict[str, Any] = config.calibrations
    selectors: dict[str, Any] = config.selectors
    _replicate_section(config, "calibrations", calibrations)
    _replicate_section(config, "selectors", selectors)


def _replicate_section(config: Configuration, section: str, entries: dict[str, Any]) -> None:
    replicas_by_name: dict[str, list[str]] = {}
    for name, entry in list(entries.items()):
        replicas = [name] + [f"{name}.{number}" for number in range(2, entry.replicates + 1)]
        replicas_by_name[name] = replicas
        for replica in replicas[1:]:
            if replica in entries:
                raise LaminaError(
                    f"{section}.{replica}: a replicate of '{name}' has the same name. Rename one "
                    "of the two."
                )
        if entry.replicates > 1:
            for index, replica in enumerate(replicas):
                entries[replica] = _draw_replicate(f"{section}.{name}", entry, name, index)

    _list_replicas(config, section, replicas_by_name)
    _check_groups(section, entries)


def _list_replicas(
    config: Configuration, section: str, replicas_by_name: dict[str, list[str]]
) -> None:
    """Replace the names of replicated entries in the lists of studies."""
    for study_name, study in config.studies.items():
        listed_names = getattr(study, section, None)
        if not listed_names:
            continue
        listed_replicas: list[str] = []
        for name in listed_names:
            listed_replicas += replicas_by_name.get(name, [name])
        config.studies[study_name] = study.model_copy(update={section: listed_replicas})


def _check_groups(section: str, entries: dict[str, Any]) -> None:
    """Refuse a group whose name is that of an entry outside the group."""
    for name, entry in entries.items():
        if entry.group in entries and entries[entry.group].group != entry.group:
            raise LaminaError(
                f"{section}.{name}.group: '{entry.group}' is also the name of an entry outside "
                "this group, but this name is to show the mean of the group. Write another label."
            )


def _draw_replicate(
    entry_key: str, entry: Calibration | Selector, name: str, index: int
) -> Calibration | Selector:
    """The replicate with an index, counted from 0."""
    entry_options = dict(entry)
    changed_options: dict[str, Any] = {"group": entry.group or name, "replicates": 1}

    if "seed" in entry_options:
        takes_all = "limit" in entry_options and entry_options["limit"] is None
        if takes_all or entry_options.get("fraction") == 1:
            raise LaminaError(
                f"{entry_key}.replicates: every draw would take all samples. Draw fewer samples "
                "than there are."
            )
        changed_options["seed"] = entry_options["seed"] + index
    elif "documents" in entry_options:
        start, stop = document_range(entry_options["documents"])
        if stop is None:
            raise LaminaError(
                f"{entry_key}.replicates: a range of documents without an end leaves none for the "
                'other replicates. Write a range such as "0:500".'
            )
        offset = index * (stop - start)
        changed_options["documents"] = f"{start + offset}:{stop + offset}"
    else:
        raise LaminaError(
            f"{entry_key}.replicates: nothing is drawn here, so all replicates would be the same. "
            "Leave it out."
        )
    return entry.model_copy(update=changed_options)


def expand_checkpoints(config: Configuration) -> None:
    """Replace every series by its models, also in the lists of studies.

    Raises LaminaError if a checkpoint has no number to order it by, two have the same number, or a
    new name is that of another model.
    """
    models_by_series: dict[str, dict[str, Model]] = {}
    for name, model in config.models.items():
        if model.checkpoints:
            models_by_series[name] = _series_models(name, model)
    for name, models in models_by_series.items():
        for taken_name in sorted(models.keys() & config.models.keys()):
            raise LaminaError(
                f"models.{name}.checkpoints: there is already a model '{taken_name}'. Rename one "
                "of the two."
            )

    model_entries = dict(config.models)
    config.models.clear()
    for name, model in model_entries.items():
        config.models.update(models_by_series.get(name, {name: model}))

    for study_name, study in config.studies.items():
        expanded_names: list[str] = []
        for name in study.models:
            expanded_names += models_by_series.get(name, [name])
        unique_names = list(dict.fromkeys(expanded_names))
        config.studies[study_name] = study.model_copy(update={"models": unique_names})


def expand_healings(config: Configuration) -> None:
    """Add a healing for each of a healing's checkpoints, also to the studies that list it.

    Raises LaminaError if its name is taken.
    """
    healings_by_name: dict[str, list[str]] = {}
    healing_entries = dict(config.healings)
    config.healings.clear()
    for name, healing in healing_entries.items():
        config.healings[name] = healing.model_copy(update={"checkpoints": None})
        healings_by_name[name] = [name]
        for epoch in healing.checkpoints or []:
            epoch_name = f"{name}-{epoch}"
            if epoch_name in healing_entries:
                raise LaminaError(
                    f"healings.{name}.checkpoints: there is already a healing '{epoch_name}'. "
                    "Rename one of the two."
                )
            config.healings[epoch_name] = healing.model_copy(
                update={"checkpoints": None, "keep": epoch}
            )
            healings_by_name[name].append(epoch_name)
    _list_replicas(config, "healings", healings_by_name)


def _series_models(name: str, entry: Model) -> dict[str, Model]:
    """The models of a series by name, one for each checkpoint."""
    model_by_name: dict[str, Model] = {}
    checkpoint_by_step: dict[int, str] = {}
    for written_checkpoint in entry.checkpoints or []:
        checkpoint = str(written_checkpoint)
        training_step = _step_of(name, checkpoint)
        if training_step in checkpoint_by_step:
            raise LaminaError(
                f"models.{name}.checkpoints: '{checkpoint_by_step[training_step]}' and "
                f"'{checkpoint}' are both at step {training_step}. Keep one of them."
            )
        checkpoint_by_step[training_step] = checkpoint
        model_by_name[f"{name}-{checkpoint}"] = entry.model_copy(
            update={
                "source": entry.source.replace(CHECKPOINT_FIELD, checkpoint),
                "revision": entry.revision and entry.revision.replace(CHECKPOINT_FIELD, checkpoint),
                "series": name,
                "step": training_step,
                "checkpoints": None,
            }
        )
    return model_by_name


def _step_of(name: str, checkpoint: str) -> int:
    """How far the training was at a checkpoint: the first number in its name."""
    first_number = re.search(r"\d+", checkpoint)
    if first_number is None:
        raise LaminaError(
            f"models.{name}.checkpoints: '{checkpoint}' holds no number of steps or tokens to "
            "order the checkpoints by. Write one such as 'step1000'."
        )
    return int(first_number[0])

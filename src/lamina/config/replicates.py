"""Entries that stand for several.

`replicates: n` turns one entry into a group of n, which differ in what they draw and are averaged in the tables.
`checkpoints` turns a model into one for each checkpoint of its training, also in the lists of studies:

    models:
      pythia: {source: EleutherAI/pythia-1b, revision: "step{checkpoint}", layers: 16, checkpoints: [1000, 143000]}

makes two models, `pythia-1000` and `pythia-143000`, and a study of `pythia` has both.
"""

import re
from typing import Any

from lamina.config.calibrations import Calibration
from lamina.config.configuration import Configuration
from lamina.config.entry import document_range
from lamina.config.models import PLACE, Model
from lamina.config.selectors import Selector
from lamina.errors import LaminaError


def replicate(config: Configuration) -> None:
    """Put the replicates of every entry beside it and into the studies that list it; called once seeds are filled in.

    The first replicate is the entry itself, so that more replicates only add jobs. The others, `NAME.2`, `NAME.3` …,
    have the next seeds, or for texts the next documents.

    Raises LaminaError if all replicates would be the same, or a name is taken.
    """
    sections: dict[str, dict[str, Any]] = {
        "calibrations": config.calibrations,
        "selectors": config.selectors,
    }
    for key, section in sections.items():
        made = {}
        for name, entry in list(section.items()):
            names = made[name] = [
                name,
                *(f"{name}.{number}" for number in range(2, entry.replicates + 1)),
            ]
            if taken := [replica for replica in names[1:] if replica in section]:
                raise LaminaError(
                    f"{key}.{taken[0]}: '{name}' has a replicate of that name. Rename one of them."
                )
            if entry.replicates > 1:
                section |= {
                    replica: _draw(f"{key}.{name}", entry, name, place)
                    for place, replica in enumerate(names)
                }
        for study, listing in config.studies.items():
            if listed := getattr(listing, key, None):
                every = [replica for name in listed for replica in made.get(name, [name])]
                config.studies[study] = listing.model_copy(update={key: every})
        for name, entry in section.items():
            if entry.group in section and section[entry.group].group != entry.group:
                raise LaminaError(
                    f"{key}.{name}.group: '{entry.group}' is the name of an entry that is not in the group, and the "
                    "mean goes by the label. Write another label."
                )


def _draw(
    where: str, entry: Calibration | Selector, name: str, number: int
) -> Calibration | Selector:
    """One of the replicates, counted from 0."""
    values = dict(entry)
    changed: dict[str, Any] = {"group": entry.group or name, "replicates": 1}
    if "seed" in values:
        if "limit" in values and values["limit"] is None or values.get("fraction") == 1:
            raise LaminaError(
                f"{where}.replicates: every draw would take all samples. Write a smaller number of them."
            )
        changed["seed"] = values["seed"] + number
    elif "documents" in values:
        first, last = document_range(values["documents"])
        if last is None:
            raise LaminaError(
                f'{where}.replicates: documents without an end leave none for the others. Write such as "0:500".'
            )
        step = number * (last - first)
        changed["documents"] = f"{first + step}:{last + step}"
    else:
        raise LaminaError(
            f"{where}.replicates: nothing is drawn here, so all would be the same. Leave it out."
        )
    return entry.model_copy(update=changed)


def expand_checkpoints(config: Configuration) -> None:
    """Replace the entry of every series by its models, also in the lists of studies.

    Raises LaminaError if a checkpoint has no number for the order, two have the same number, or its name is the name of
    a model.
    """
    series = {
        name: _models(name, entry) for name, entry in config.models.items() if entry.checkpoints
    }
    for name, models in series.items():
        if taken := sorted(models.keys() & config.models.keys()):
            raise LaminaError(
                f"models.{name}.checkpoints: '{taken[0]}' is the name of a model already. Rename one of the two."
            )
    every = [series.get(name, {name: entry}) for name, entry in config.models.items()]
    config.models.clear()
    for models in every:
        config.models.update(models)
    for key, study in config.studies.items():
        named = [model for name in study.models for model in series.get(name, [name])]
        config.studies[key] = study.model_copy(update={"models": list(dict.fromkeys(named))})


def _models(name: str, entry: Model) -> dict[str, Model]:
    models: dict[str, Model] = {}
    steps: dict[int, str] = {}
    for checkpoint in map(str, entry.checkpoints or []):
        number = re.search(r"\d+", checkpoint)
        if not number:
            raise LaminaError(
                f"models.{name}.checkpoints: '{checkpoint}' holds no number of steps or tokens to put it in order by. "
                "Write one such as 'step1000'."
            )
        step = int(number[0])
        if step in steps:
            raise LaminaError(
                f"models.{name}.checkpoints: '{steps[step]}' and '{checkpoint}' are both at {step}. Keep one of them."
            )
        steps[step] = checkpoint
        filled = {
            "source": entry.source.replace(PLACE, checkpoint),
            "series": name,
            "step": step,
            "checkpoints": None,
        }
        revision = entry.revision and entry.revision.replace(PLACE, checkpoint)
        models[f"{name}-{checkpoint}"] = entry.model_copy(update={**filled, "revision": revision})
    return models

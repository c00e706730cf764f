"""Checkpoints of one training: one entry becomes a model for each checkpoint, also in the lists of studies.

    models:
      pythia: {source: EleutherAI/pythia-1b, revision: "step{checkpoint}", layers: 16, checkpoints: [1000, 143000]}

makes two models, `pythia-1000` and `pythia-143000`, and a study of `pythia` has both.
"""

import re

from lamina.config.configuration import Configuration
from lamina.config.models import PLACE, Model
from lamina.config.studies import Study
from lamina.errors import LaminaError


def expand(config: Configuration) -> None:
    """Replace the entry of every series by its models, also in the lists of studies.

    Raises
    ------
    LaminaError
        If a checkpoint has no number for the order, two have the same number, or its name is the name of a model.
    """
    series = {name: _models(name, entry) for name, entry in config.models.items() if entry.checkpoints}
    for name, models in series.items():
        taken = sorted(set(models) & set(config.models))
        if taken:
            raise LaminaError(
                f"models.{name}.checkpoints: '{taken[0]}' is the name of a model already. Rename one of the two."
            )
        before = dict(config.models)
        config.models.clear()
        for other, entry in before.items():
            config.models.update(models if other == name else {other: entry})
    for key, study in config.studies.items():
        config.studies[key] = _with_checkpoints(study, series)


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
        filled = {"source": entry.source.replace(PLACE, checkpoint), "series": name, "step": step, "checkpoints": None}
        revision = entry.revision and entry.revision.replace(PLACE, checkpoint)
        models[f"{name}-{checkpoint}"] = entry.model_copy(update={**filled, "revision": revision})
    return models


def _with_checkpoints(study: Study, series: dict[str, dict[str, Model]]) -> Study:
    named = [model for name in study.models for model in series.get(name, [name])]
    return study.model_copy(update={"models": list(dict.fromkeys(named))})

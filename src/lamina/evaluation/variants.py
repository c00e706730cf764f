"""The list of variants that a benchmark job is given, and each of them materialised in turn from one base model."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.models.variant import materialise
from lamina.recovery import patch

KEYS = ("calibration", "selector", "removed", "recovery", "healing")


@dataclass(frozen=True)
class Description:
    """A variant as the workflow writes it: keys of the tables, and the files that make it (None where it has none)."""

    keys: dict[str, Any]
    plan: str | None
    patch: str | None
    adapter: str | None

    @property
    def name(self) -> str:
        """How messages call it."""
        if self.plan is None:
            return f"the model '{self.keys['model']}'"
        return "the variant " + "/".join(f"{name}={value}" for name, value in self.keys.items())


def read(text: str, model: str) -> list[Description]:
    """Descriptions from the JSON of `--variants`: a list of the KEYS with `plan`, `patch` and `adapter` paths or null.

    The base model is the entry whose plan is null.
    """
    return [
        Description(
            {"model": model, **{key: entry[key] for key in KEYS}}, entry["plan"], entry["patch"], entry["adapter"]
        )
        for entry in json.loads(text)
    ]


def in_turn(base: PreTrainedModel, wanted: Sequence[Description]) -> Iterator[tuple[Description, PreTrainedModel]]:
    """Each variant, one at a time; those of refused plans are left out."""
    for description in wanted:
        if description.plan is None:
            yield description, materialise(base, None)
            continue
        plan = json.loads(Path(description.plan).read_text(encoding="utf-8"))
        if not plan["units"]:
            continue
        patches = patch.load(description.patch, plan["removed"]) if description.patch else None
        yield description, materialise(base, plan, patches, description.adapter)

"""The files behind a variant, and variants materialised in turn from one base model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.models.materialise import materialise
from lamina.models.variant import Boundary
from lamina.recovery import patch
from lamina.recovery.protocol import Fitted
from lamina.variant import Variant
from lamina.workflow import paths


@dataclass(frozen=True)
class Parts:
    """What `materialise` makes a variant of; all None for the unpruned model. `adapter` is a folder."""

    plan: Mapping[str, Any] | None
    patches: Mapping[Boundary, Fitted] | None
    adapter: str | None

    @property
    def refused(self) -> bool:
        """Whether the plan was refused, so that there is no such variant."""
        return self.plan is not None and not self.plan["units"]


def plan(variant: Variant, results: str | Path = paths.RESULTS) -> dict[str, Any] | None:
    """The plan behind a variant, None for the unpruned model; one without units was refused."""
    file = paths.variant_files(variant, results).plan
    return json.loads(Path(file).read_text(encoding="utf-8")) if file else None


def read(variant: Variant, results: str | Path = paths.RESULTS) -> Parts:
    """What stands in a variant's files under `results`; of a refused plan, the plan alone."""
    files, found = paths.variant_files(variant, results), plan(variant, results)
    if found is not None and not found["units"]:
        return Parts(found, None, None)
    return Parts(found, patch.load(files.patch, variant.removed) if files.patch else None, files.adapter)


def in_turn(
    base: PreTrainedModel, wanted: Sequence[Variant], results: str | Path = paths.RESULTS
) -> Iterator[tuple[Variant, PreTrainedModel]]:
    """Each variant, one at a time; those of refused plans are left out."""
    for variant in wanted:
        parts = read(variant, results)
        if not parts.refused:
            yield variant, materialise(base, parts.plan, parts.patches, parts.adapter)


def title(variant: Variant) -> str:
    """How messages call a variant."""
    return f"the model '{variant.model}'" if variant.is_base else f"the variant {variant}"

"""The common part of rules that measure many variants of one model: the variants, their files and their repairs."""

from collections.abc import Sequence
from typing import Annotated, Any

from lamina.config.configuration import Configuration
from lamina.stages import files
from lamina.stages.job import READ, OnModel, family, minutes
from lamina.study import paths
from lamina.study.variant import Variant


class Measuring(OnModel):
    """Variants of one model, as text, and what they are made of; `gate` are the checks that must pass before.

    `repairs` are the modules of their repairs, which build the models.
    """

    variants: list[str]
    made_of: Annotated[list[str], READ] = []
    gate: Annotated[list[str], READ] = []
    repairs: list[str] = []

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self.repairs)

    def minutes(self, attempt: int) -> int:
        """As for any job; measuring takes longer with more files of variants."""
        return minutes(self._described(), attempt, len(self.made_of))


def measured(config: Configuration, model: str, variants: Sequence[Variant]) -> dict[str, Any]:
    """The fields that all these jobs have, without the gate."""
    return {
        "manifest": paths.manifest(model),
        "check": paths.check(model),
        "variants": [str(variant) for variant in variants],
        "made_of": files.of_variants(variants),
        "repairs": files.repairs(config, [variant.repair for variant in variants]),
        "follows": family(config, model),
    }

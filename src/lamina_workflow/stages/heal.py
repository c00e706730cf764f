"""The job of rules/heal.smk: train one variant."""

from typing import Annotated, Any, Self

from lamina.options.entry import Options
from lamina.options.healings import Healing
from lamina.variant import Variant
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages.changes import repair_modules
from lamina_workflow.stages.job import READ, OnModel, follow_family


class HealVariant(OnModel):
    """One variant, as text, and its healing.

    `weights` maps each calibration that the healing trains on to the weight of a token; `data` are
    the files of these calibrations, except the variant's own, which is `calibration`. Without a
    `patch`, the variant is not repaired; `repairs` are the modules of its repair. The adapter is
    written to the folder of `output`, the training curve.
    """

    variant: str
    healing: Options[Healing]
    weights: list[tuple[str, float]]
    repairs: list[str] = []
    calibration: Annotated[str, READ] = ""
    data: Annotated[dict[str, str], READ] = {}
    plan: Annotated[str, READ] = ""
    patch: Annotated[str | None, READ] = None

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        healing = config.healings[w.healing]
        return cls(
            variant=str(Variant.of(w)),
            healing=healing,
            weights=healing.ordered_weights(w.calibration),
            repairs=repair_modules(config, [w.repair]),
            follows=follow_family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return (f"lamina.healing.{self.healing.method}", *self.repairs)

    @property
    def training_files(self) -> list[str]:
        """The files of the calibrations that the healing trains on, in the order of `weights`."""
        files = {Variant.parse(self.variant).calibration: self.calibration} | self.data
        return [files[calibration] for calibration, _ in self.weights]

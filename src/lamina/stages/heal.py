"""Job of rules/heal.smk: the training of one variant."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.entry import Options
from lamina.config.healings import Healing
from lamina.stages.changes import repair_modules
from lamina.stages.job import READ, OnModel, family
from lamina.study.variant import Variant


class HealVariant(OnModel):
    """One variant, as text, and its healing.

    `weights` has the weight of a token of each calibration that it trains on; `data` are the files of the calibrations
    beside its own. Without a `patch` nothing is repaired; `repairs` are the modules of the repair. The adapter stands
    in the folder of `output`, the training curve.
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
            variant=str(Variant.of({**dict(w.items()), "removed": int(w.removed)})),
            healing=healing,
            weights=list(_ordered(healing).weights(w.calibration).items()),
            repairs=repair_modules(config, [w.repair]),
            follows=family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return (f"lamina.healing.{self.healing.method}", *self.repairs)


def _ordered(healing: Healing) -> Healing:
    """The healing with its data sorted by name, so that the order in the configuration changes nothing."""
    data = getattr(healing, "data", None)
    return (
        healing.model_copy(update={"data": dict(sorted(data.items()))})
        if isinstance(data, dict)
        else healing
    )

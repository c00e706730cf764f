"""Rule heal_variant: train one variant on calibrations."""

from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.healings import Healing
from lamina.stages import files
from lamina.stages.job import READ, OnModel, Told, family
from lamina.study import paths
from lamina.study.variant import Variant

_FOLDER = paths.adapter(paths.KEY, "{removed}", "{repair}", "{healing}")


class HealVariant(OnModel):
    """One variant, as text, and its healing.

    `weights` has the weight of a token of each calibration that it trains on; `data` are the files of the calibrations
    beside its own. Without a `patch` nothing is repaired; `repairs` are the modules of the repair. The adapter stands
    in the folder of `output`, the training curve.
    """

    OUTPUTS = {
        "adapter": paths.adapter_weights(_FOLDER)[0],
        "settings": paths.adapter_weights(_FOLDER)[1],
        "output": paths.training(_FOLDER),
    }

    variant: str
    healing: Told[Healing]
    weights: list[tuple[str, float]]
    calibration: Annotated[str, READ]
    data: Annotated[dict[str, str], READ] = {}
    plan: Annotated[str, READ]
    patch: Annotated[str | None, READ] = None
    repairs: list[str] = []
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variant, healing = Variant.of({**w, "removed": int(w.removed)}), config.healings[w.healing]
        weights = _ordered(healing).weights(w.calibration)
        made = paths.variant_files(variant)
        return cls(
            variant=str(variant),
            healing=healing,
            weights=list(weights.items()),
            manifest=paths.manifest(w.model),
            check=paths.check(w.model),
            calibration=paths.calibration(w.model, w.calibration),
            data={name: paths.calibration(w.model, name) for name in weights if name != w.calibration},
            plan=made.plan or "",
            patch=made.patch,
            repairs=files.repairs(config, [w.repair]),
            follows=family(config, w.model),
            **cls.written(w),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return (f"lamina.healing.{self.healing.method}", *self.repairs)


def _ordered(healing: Healing) -> Healing:
    """The healing with its data sorted by name, so that the order in the configuration changes nothing."""
    data = getattr(healing, "data", None)
    return healing.model_copy(update={"data": dict(sorted(data.items()))}) if isinstance(data, dict) else healing

"""Section `repairs`: the options that all repairs of removed runs of layers share.

The options of one method stand in its module under `lamina.repairs.methods`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lamina.options.entry import Choice, Named, Spelt, option
from lamina.options.explain import invalid, join_words

OWN = "own"  # the calibration of the variant itself
AUTO: Final = "auto"  # a weight that is chosen for each plan
# The weight that replaces `auto` while units are scored: there is no plan yet for which it could be
# chosen.
IN_LOOP = 0.1


def _check_own_weight(weights: dict[str, Any]) -> dict[str, Any]:
    if weights.get(OWN, AUTO) == AUTO:
        raise invalid(
            f"the variant's own calibration is missing. Add `{OWN}: 1`, the weight of one of its "
            "tokens."
        )
    return weights


ridge_option = partial(
    option,
    "Ridge strength relative to the mean squared activation; `validated` selects it on held-out "
    "calibration samples.",
    "validated",
    allowed="validated, or a number of at least 0",
)


class Repair(Choice):
    """A repair fitted on the calibration, for each removed run of layers. `none` always exists."""

    BY = "method"
    PACKAGE = "lamina.repairs.methods"
    # Whether it is a linear map of the stream at the boundary, which can be in place while
    # candidates are scored and can be trained; else it changes weights.
    LINEAR: ClassVar[bool] = True

    method: str = option("The repair method.")
    data: Annotated[
        Named[Literal["auto"] | Annotated[float, Spelt, Field(gt=0)]],
        AfterValidator(_check_own_weight),
    ] = option(
        "Data for the fit: names of calibrations with the weight of one token of each. `own` is "
        "the variant's own. A tenth of general text, `{own: 1, corpus: 0.1}`, keeps a repair "
        "from ruining other text. `auto` selects the smallest weight from 0 to 3 that stays "
        "within `tolerance`, separately for each size.",
        {OWN: 1.0},
        allowed="weights above 0 by calibration, such as {own: 1, corpus: 0.1}; auto for any but "
        "own",
        shown_default="`{own: 1}`",
    )
    tolerance: float = option(
        "With `auto`: how much the repair may raise the pruned model's loss on held-out samples "
        "of the calibrations with that weight, in nats per token.",
        0.02,
        ge=0,
    )

    @model_validator(mode="after")
    def _check_auto(self) -> Self:
        if AUTO in self.data.values() and not self.LINEAR:
            raise invalid(
                f"'{AUTO}' tries repairs inside one pass, but '{self.method}' is not a linear map "
                "of the stream. Write a number such as 0.1, or a method that is one: "
                f"{Repair.of_stream()}.",
                "data",
            )
        return self

    def weights(self, own: str, auto: float) -> dict[str, float]:
        """The weight of a token by calibration, that of the variant (`own`) first.

        auto: The value of the weight `auto`.
        """
        weights = {own: 0.0}
        for name, written_weight in self.data.items():
            calibration = own if name == OWN else name
            weight = auto if written_weight == AUTO else written_weight
            weights[calibration] = weights.get(calibration, 0.0) + weight
        return weights

    def ordered_weights(self, own: str, auto: float) -> list[tuple[str, float]]:
        """The weights of `weights`, that of the variant's `own` calibration first, others by name.

        The order in which a configuration lists them does not matter.
        """
        weights = self.weights(own, auto)
        own_weight = weights.pop(own)
        return [(own, own_weight), *sorted(weights.items())]

    @classmethod
    def of_stream(cls) -> str:
        """`a or b`: the methods that put a linear map of the stream where a run was removed."""
        return join_words([kind.title() for kind in Repair.kinds() if kind.LINEAR])

    @property
    def chain(self) -> str | None:
        """The module whose `fit` fits the runs of a plan one after the other.

        None if one pass serves them all.
        """
        return None

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that a fit loads by name."""
        method_module = f"{self.PACKAGE}.{self.method}"
        if self.chain is None:
            return (method_module,)
        return (method_module, self.chain)

    def layer_passes(
        self, depth: int, runs: Sequence[int], training: int, held_out: float
    ) -> float:
        """How many layers each token of a fit goes through.

        One pass takes the sums. Absolute errors of a linear map need the held-out samples and
        half as many others.

        depth: Layers of the base model.
        runs: How many runs of layers each plan lacks that is repaired.
        training: Forward passes that a training step costs.
        held_out: Share of the samples that is not trained on.
        """
        if not self.LINEAR:
            return depth
        return depth * (1 + held_out + held_out / 2)

    def automatic(self, own: str) -> list[str]:
        """The calibrations whose weight must be chosen; that of the variant itself is given."""
        return [name for name, weight in self.data.items() if weight == AUTO and name != own]

"""Section `recoveries`: the training-free repairs. A class here has the name and the options of a method."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from lamina.config.entry import ByValue, Named, Spelt, option
from lamina.config.explain import wrong

OWN = "own"  # the calibration of the variant itself, whichever it is


def _with_own(weights: dict[str, float]) -> dict[str, float]:
    if OWN not in weights:
        raise wrong(f"the variant's own calibration is missing. Add `{OWN}: 1`, the weight of one of its tokens.")
    return weights


def ridge_option() -> Any:
    """The key `ridge`."""
    return option(
        "Ridge relative to the mean squared activation; `validated` picks it on held-out calibration samples.",
        "validated",
        allowed="validated, or a number of at least 0",
    )


class Recovery(ByValue):
    """A repair that is fitted on the calibration without training. `none`, no repair, always exists."""

    BY: ClassVar[str] = "method"
    # Whether it is a linear map of the stream at the boundary, which can be in place while candidates are scored.
    LINEAR: ClassVar[bool] = True
    # Whether it is folded into weights and leaves no patch that could be trained.
    FOLDED: ClassVar[bool] = False

    method: str = option("The recovery method.")
    data: Annotated[Named[Annotated[float, Spelt, Field(gt=0)]], AfterValidator(_with_own)] = option(
        "What it is fitted on: names of calibrations with the weight of a token of each. `own` is the variant's own; a "
        "tenth of general text beside it, `{own: 1, corpus: 0.1}`, keeps a repair from ruining other text.",
        {OWN: 1.0},
        allowed="weights above 0 by calibration, such as {own: 1, corpus: 0.1}",
        shown_default="`{own: 1}`",
    )

    def weights(self, own: str) -> dict[str, float]:
        """The weight of a token by calibration, that of the variant (`own`) first."""
        weights = {own: 0.0}
        for name, weight in self.data.items():
            name = own if name == OWN else name
            weights[name] = weights.get(name, 0.0) + weight
        return weights


class Ghost(Recovery):
    """One linear map of the residual stream where a run of layers went, by ridge regression."""

    method: Literal["ghost"] = "ghost"
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = ridge_option()
    bias: bool = option("Whether the operator has a bias (is affine).", False)
    rank: int | None = option("Rank of the operator; `null` leaves it full.", None, ge=1)


class LinearPatch(Recovery):
    """One scale per channel of the residual stream where a run of layers went, after arXiv 2505.24680."""

    method: Literal["linearpatch"] = "linearpatch"
    form: Literal["diag", "rotated"] = option(
        "`rotated` scales the channels after a Hadamard rotation, as the paper does, `diag` as they are.", "rotated"
    )


class ReplaceMe(Recovery):
    """One linear map of what the last MLP before a run gives out, folded into its weights, after arXiv 2505.02819."""

    LINEAR = False
    FOLDED = True

    method: Literal["replaceme"] = "replaceme"
    objective: Literal["least_squares", "cosine"] = option(
        "`least_squares` has a closed form; `cosine` minimises the cosine distance per token with Adam.",
        "least_squares",
    )
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = ridge_option()
    epochs: int = option("With `cosine`: passes over the data.", 10, ge=1)
    learning_rate: float = option("With `cosine`: step size of Adam.", 0.0001, gt=0)


class PruneComp(Recovery):
    """One number that makes the stream as large as it was, folded into all weights before a run, after
    arXiv 2507.18212.
    """

    FOLDED = True

    method: Literal["prune_comp"] = "prune_comp"


read = Recovery.from_options

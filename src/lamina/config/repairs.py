"""Section `repairs`: repairs of removed runs of layers. A class here has the name and the options of a method."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lamina.config.entry import ByValue, Named, Spelt, option
from lamina.config.explain import wrong

OWN = "own"  # the calibration of the variant itself
AUTO: Final = "auto"  # a weight that is chosen for each plan


def _with_own(weights: dict[str, Any]) -> dict[str, Any]:
    if weights.get(OWN, AUTO) == AUTO:
        raise wrong(f"the variant's own calibration is missing. Add `{OWN}: 1`, the weight of one of its tokens.")
    return weights


def ridge_option() -> Any:
    """The key `ridge`."""
    return option(
        "Ridge relative to the mean squared activation; `validated` picks it on held-out calibration samples.",
        "validated",
        allowed="validated, or a number of at least 0",
    )


class Repair(ByValue):
    """A repair that is fitted on the calibration, run by run. `none`, no repair, always exists."""

    BY: ClassVar[str] = "method"
    # Whether it is a linear map of the stream at the boundary, which can be in place while candidates are scored.
    LINEAR: ClassVar[bool] = True
    # Whether it is folded into weights and leaves no patch that could be trained.
    FOLDED: ClassVar[bool] = False
    # Whether it is fitted on matrices (C, C) of sums, and not on vectors (C,) only.
    MATRICES: ClassVar[bool] = True

    method: str = option("The repair method.")
    data: Annotated[Named[Literal["auto"] | Annotated[float, Spelt, Field(gt=0)]], AfterValidator(_with_own)] = option(
        "What it is fitted on: names of calibrations with the weight of a token of each. `own` is the variant's own; a "
        "tenth of general text beside it, `{own: 1, corpus: 0.1}`, keeps a repair from ruining other text; `auto` "
        "picks the smallest weight of 0 to 3 that keeps it, for each size by itself.",
        {OWN: 1.0},
        allowed="weights above 0 by calibration, such as {own: 1, corpus: 0.1}; auto for any but own",
        shown_default="`{own: 1}`",
    )
    tolerance: float = option(
        "With `auto`: how much higher than the pruned model's the loss of the repaired one may be on held-out samples "
        "of what has that weight, in nats per token.",
        0.02,
        ge=0,
    )

    @model_validator(mode="after")
    def _check_auto(self) -> Self:
        if AUTO in self.data.values() and not self.LINEAR:
            raise wrong(
                f"'{AUTO}' tries repairs inside one pass, and '{self.method}' is no linear map of the stream. Write a "
                "number such as 0.1, or method: ghost.",
                "data",
            )
        return self

    def weights(self, own: str, auto: float) -> dict[str, float]:
        """The weight of a token by calibration, that of the variant (`own`) first; `auto` is the value of that word."""
        weights = {own: 0.0}
        for name, weight in self.data.items():
            name = own if name == OWN else name
            weights[name] = weights.get(name, 0.0) + (auto if weight == AUTO else weight)
        return weights

    @property
    def one_pass(self) -> bool:
        """Whether it is fitted on statistics of one pass over the unpruned model, which several repairs can share.

        Its module then has `collector` and `collected`, see `lamina.repair.protocol`.
        """
        return False

    def shares(self, own: str) -> bool:
        """Whether variants of the calibration `own` get it from a pass that repairs share."""
        return self.one_pass and not self.automatic(own)

    def automatic(self, own: str) -> list[str]:
        """The calibrations whose weight must be chosen; that of the variant itself is given."""
        return [name for name, weight in self.data.items() if weight == AUTO and name != own]


class Ghost(Repair):
    """One linear map of the residual stream where a run of layers went, by ridge regression."""

    method: Literal["ghost"] = "ghost"
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = ridge_option()
    bias: bool = option("Whether the operator has a bias (is affine).", False)
    rank: int | None = option("Rank of the operator; `null` leaves it full.", None, ge=1)
    refit: bool = option(
        "Whether each run after the first is fitted on the stream of the model as pruned and patched before it, and "
        "not on the unpruned one's.",
        False,
    )

    @property
    def one_pass(self) -> bool:
        return not self.refit

    @model_validator(mode="after")
    def _check_refit(self) -> Self:
        if self.refit and AUTO in self.data.values():
            raise wrong(f"goes through a plan run by run, and '{AUTO}' fits all at once. Write a weight.", "refit")
        return self


class LinearPatch(Repair):
    """One scale per channel of the residual stream where a run of layers went, after arXiv 2505.24680."""

    MATRICES = False

    method: Literal["linearpatch"] = "linearpatch"
    form: Literal["diag", "rotated"] = option(
        "`rotated` scales the channels after a Hadamard rotation, as the paper does, `diag` as they are.", "rotated"
    )

    @property
    def one_pass(self) -> bool:
        return True


class ReplaceMe(Repair):
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

    @property
    def one_pass(self) -> bool:
        return self.objective == "least_squares"


class PruneComp(Repair):
    """One number that makes the stream as large as it was, folded into all weights before a run, after
    arXiv 2507.18212.
    """

    FOLDED = True
    MATRICES = False

    method: Literal["prune_comp"] = "prune_comp"

    @property
    def one_pass(self) -> bool:
        return True


class Streamline(Repair):
    """The layer before a run, trained to do the work of the run as well, after arXiv 2403.19135: the number of layers
    is that of any other repair.
    """

    LINEAR = False

    method: Literal["streamline"] = "streamline"
    epochs: int = option("Passes over the data; the best state by held-out error is kept.", 10, ge=0)
    learning_rate: float = option("Step size of Adam.", 0.001, gt=0)
    batch: int = option("Samples of a step.", 16, ge=1)


read = Repair.from_options

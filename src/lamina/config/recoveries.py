"""Section `recoveries`: the training-free repairs. A class here has the name and the options of a method."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lamina.config.entry import ByValue, option


class Recovery(ByValue):
    """A repair that is fitted on the calibration without training. `none`, no repair, always exists."""

    BY: ClassVar[str] = "method"

    method: str = option("The recovery method.")


class Ghost(Recovery):
    """One linear map of the residual stream where a run of layers went, by ridge regression."""

    method: Literal["ghost"] = "ghost"
    ridge: Literal["validated"] | Annotated[float, Field(ge=0)] = option(
        "Ridge relative to the mean squared activation; `validated` picks it on held-out calibration samples.",
        "validated",
        allowed="validated, or a number of at least 0",
    )
    bias: bool = option("Whether the operator has a bias (is affine).", False)
    rank: int | None = option("Rank of the operator; `null` leaves it full.", None, ge=1)


read = Recovery.from_options

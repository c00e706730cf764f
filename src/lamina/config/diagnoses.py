"""Section `diagnoses`: measurements of what layers do that remove nothing. A class here has the name of a kind."""

from typing import ClassVar, Literal

from lamina.config.entry import ByValue, option


class Diagnosis(ByValue):
    """A measurement of the unpruned model, layer by layer, on the calibrations of the studies that list it."""

    BY: ClassVar[str] = "kind"

    kind: str = option("What is measured.")


class Variance(Diagnosis):
    """The variance of the residual stream after each layer, over all tokens and again without the first ones.

    Massive activations live on the first tokens; the second set of rows shows the stream without them.
    """

    kind: Literal["variance"] = "variance"
    skip_first: int = option("Tokens at the start of a sample that the second set of rows leaves out.", 1, ge=1)


class Fit(Diagnosis):
    """How well one linear map stands in for each run of layers, against the number of samples and the ridge.

    Every run of `span` layers gets the map of recovery `ghost`, fitted on 8, 16, 32 … samples and on all that are not
    held out, with every ridge of the grid. Each draw holds out another fifth and adds the samples in another order.
    """

    kind: Literal["fit"] = "fit"
    span: int = option("Layers of a run.", 1, ge=1)
    draws: int = option(
        "Draws of the held-out samples and of the order of the others; two or more give intervals.", 5, ge=1, le=10
    )


read = Diagnosis.from_options

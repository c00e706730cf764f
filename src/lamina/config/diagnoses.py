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


read = Diagnosis.from_options

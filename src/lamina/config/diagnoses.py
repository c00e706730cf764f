"""Section `diagnoses`: measurements of what layers do that remove nothing. A class here has the name of a kind."""

from typing import ClassVar, Literal

from lamina.config.entry import ByValue, Place, option, seed_option


class Diagnosis(ByValue):
    """A measurement of the unpruned model, layer by layer, on the calibrations of the studies that list it.

    One with a `file` is measured on that instead, once for each model.
    """

    BY: ClassVar[str] = "kind"
    FILED: ClassVar[bool] = False

    kind: str = option("What is measured.")


class Variance(Diagnosis):
    """The variance of the residual stream after each layer, over all tokens and again without the first ones.

    Massive activations live on the first tokens; the second set of rows shows the stream without them.
    """

    kind: Literal["variance"] = "variance"
    skip_first: int = option("Tokens at the start of a sample that the second set of rows leaves out.", 1, ge=1)


class Fit(Diagnosis):
    """How well one linear map stands in for each run of layers, against the number of samples and the ridge.

    Every run of `span` layers gets the map of repair `ghost`, fitted on 8, 16, 32 … samples and on all that are not
    held out, with every ridge of the grid. Each draw holds out another fifth and adds the samples in another order.
    """

    kind: Literal["fit"] = "fit"
    span: int = option("Layers of a run.", 1, ge=1)
    draws: int = option(
        "Draws of the held-out samples and of the order of the others; two or more give intervals.", 5, ge=1, le=10
    )


class Void(Diagnosis):
    """For which share of tokens the norm of the stream grows little at a layer, next to what it grew before it.

    The tokens of questions and of their answers are counted apart too.
    """

    kind: Literal["void"] = "void"
    alpha: float = option("Share of the range of the earlier layers' growth that a layer must reach.", 0.8, gt=0, le=1)


class Probe(Diagnosis):
    """From which depth a label of the input can be read off the stream, by logistic regression on the last token.

    One line of the file is one input: `{"text": "3 4 + 1 2 =", "label": "even"}`.
    """

    FILED = True

    kind: Literal["probe"] = "probe"
    file: Place = option("A .jsonl file of your own with `text` and `label` in each line.")
    folds: int = option("Folds of the cross-validation, each with the labels in equal shares.", 5, ge=2, le=20)
    strength: float = option("Inverse strength of the probe's ridge, on standardised channels.", 0.1, gt=0)
    seed: int = seed_option()


class Patching(Diagnosis):
    """Where in the stream the difference between two prompts sits that makes the model answer them differently.

    One line of the file is a pair of prompts with equally many tokens:
    `{"clean": "zaro lives in", "corrupt": "baro lives in", "right": "maple", "foil": "pine"}`.
    """

    FILED = True

    kind: Literal["patching"] = "patching"
    file: Place = option("A .jsonl file of your own with `clean`, `corrupt`, `right` and `foil` in each line.")
    least: float = option("Pairs that the model tells apart by fewer nats are left out.", 1.0, gt=0)


read = Diagnosis.from_options

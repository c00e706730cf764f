"""Section `diagnoses`: measurements of what layers do that remove nothing; options of a kind stand in its module."""

from typing import ClassVar

from lamina.config.entry import Choice, option


class Diagnosis(Choice):
    """A measurement of the unpruned model, layer by layer, on the calibrations of the studies that list it.

    One with a `file` is measured on that instead, once for each model.
    """

    BY = "kind"
    PACKAGE = "lamina.diagnosis"
    FILED: ClassVar[bool] = False

    kind: str = option("What is measured.")

"""What can be written of a diagnosis."""

from typing import ClassVar

from lamina.options.entry import Choice, option


class Diagnosis(Choice):
    """A measurement of the base model, layer by layer.

    It uses the calibrations of the studies that list it. A diagnosis with a `file` uses that file
    instead, once for each model.
    """

    BY = "kind"
    PACKAGE = "lamina.diagnosis"
    # Whether it reads a file instead of a calibration.
    FILED: ClassVar[bool] = False

    kind: str = option("What is measured.")

"""Metrics of the residual stream. No unit is removed."""

from lamina.relevance.protocol import Metric


class Cosine(Metric):
    """Block influence: the mean over tokens of 1 - cos(h_l, h_{l+1}) [arXiv 2605.14075, eq. 2]."""

    name = "cosine"
    pass_ = "stream"
    columns = ("cosine",)
    help = "cosine distance of the residual stream across the unit"
    runs = True


class Angular(Metric):
    """The turn at the last token T: arccos(cos(h_l[T], h_{l+1}[T])) / π.

    arXiv 2403.17887, eq. 6.
    """

    name = "angular"
    pass_ = "stream"
    columns = ("angular_last",)
    help = "angular distance of the stream across the unit, last token"
    runs = True

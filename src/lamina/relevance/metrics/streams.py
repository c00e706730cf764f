"""Metrics of the residual stream. No unit is removed."""

from lamina.relevance.protocol import Metric


class Cosine(Metric):
    """Block influence: the mean over tokens of 1 - cos(h_l, h_{l+1}) [arXiv 2605.14075, eq. 2]."""

    name = "cosine"
    pass_ = "stream"
    columns = ("cosine",)
    help = "how much the unit turns the residual stream"
    runs = True


class Angular(Metric):
    """The turn at the last token T: arccos(cos(h_l[T], h_{l+1}[T])) / π.

    arXiv 2403.17887, eq. 6.
    """

    name = "angular"
    pass_ = "stream"
    columns = ("angular_last",)
    help = "how much it turns the stream at the last token"
    runs = True

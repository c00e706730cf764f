"""The angle by which a unit turns the residual stream at the last token T: arccos(cos(h_l[T], h_{l+1}[T])) / π.

arXiv 2403.17887, eq. 6. No unit is removed.
"""

METRIC = {
    "pass_": "stream",
    "column": "angular_last",
    "help": "how much it turns the stream at the last token",
    "runs": True,
}

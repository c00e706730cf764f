"""Block influence: how much a unit turns the residual stream, the mean over tokens of 1 - cos(h_l, h_{l+1}).

arXiv 2605.14075, eq. 2. No unit is removed.
"""

METRIC = {"pass_": "stream", "column": "cosine", "help": "how much the unit turns the residual stream", "runs": True}

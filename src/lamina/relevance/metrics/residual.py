"""The share of the stream that no linear patch could give back if a unit were removed. No unit is removed.

The sum over the runs of removed layers of ‖Y - Ŷ‖² / ‖Y - mean‖² at their ends, cross-fitted.
"""

METRIC = {
    "pass_": "fit",
    "column": "residual",
    "help": "what no linear patch gives back of the stream",
    "halves": False,
}

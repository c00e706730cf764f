"""The change of the loss, to first order, if a unit's weights were removed: the sum of abs(w · ∂loss/∂w). No unit is
removed.

A sample's share of that sum is its own first-order loss change along the signs of the mean gradient, so the mean of the
shares is the score and their spread its sampling error [LLM-Pruner, Shortened LLaMA].
"""

METRIC = {"pass_": "gradient", "column": "taylor", "help": "sum of abs(weight × gradient)"}

"""What the loss would feel, to first order, if a unit's weights went: their sum of abs(w · ∂loss/∂w). None is removed.

A sample's share of that sum is its own first-order loss change along the signs of the mean gradient, so the mean of the
shares is the score and their spread its sampling error [LLM-Pruner, Shortened LLaMA].
"""

METRIC = {"pass_": "gradient", "column": "taylor", "help": "sum of abs(weight × gradient)"}

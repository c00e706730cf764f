"""Which units to remove.

`strategies` picks units from scores, one file for each strategy with its options. `removals`
measures a sweep, and `choosing` turns sweeps or captured activations into the evidence that a
strategy decides on. `plans` has what a strategy is asked for and what it returns.

Strategies that try whole sets are one job. `sets` runs such a search and `judging` that of a
portfolio, whose sets compete in a `tournament`. Both ask `trials` for losses, which asks an
`evaluator` for what was not measured yet. `looped` scores candidates with a repair in place.
"""

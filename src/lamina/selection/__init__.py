"""Which units to remove.

`strategies` picks units from scores, one file for each strategy with its options. `removals`
measures a sweep, and `choosing` turns sweeps or captured activations into the evidence that a
strategy decides on. `plans` has what a strategy is asked for and what it returns.

Strategies that try whole sets are one job. `sets` runs such a search, and `judging` that of a
portfolio: `proposing` asks its members for sets, which compete in a `tournament`. Both searches ask
`trials` for losses, which asks an `evaluator` for what was not measured yet. `looped` scores the
removals of a sweep with a repair in place, and fits the patches of a portfolio.

Which samples decide: `iterative`, `one_shot`, `block` and `clusters` use the whole calibration (with
a repair in place, two folds score under each other's patches). `pairwise`, `rearrange` and `repeat`
choose on all but a held-back part, which measures only their final sets. A portfolio's members
propose on one part, and the held-back part, or the calibration `judge`, decides.

An iterative selector goes on through files: rule `prune_step` reads the plan of the size before and
the sweep of the model that this plan leaves.
"""

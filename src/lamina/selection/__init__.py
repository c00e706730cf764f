"""Which units to remove.

`strategies` picks units from scores, one file per strategy with its options. `removals` measures a
sweep, and `choosing` turns sweeps or captured activations into the evidence on which a strategy
decides. `plans` holds a strategy's request and its result.

Strategies that try whole sets run as one job. `sets` runs such a search, and `judging` that of a
portfolio: `proposing` asks its members for sets, which compete in a `tournament`. Both searches ask
`trials` for losses; an `evaluator` measures those that are still missing. `looped` scores the
removals of a sweep with a repair in place, and fits the patches of a portfolio.

Which samples decide: `iterative`, `one_shot`, `block` and `clusters` use the whole calibration (with
a repair in place, each of two folds is scored under the other's patches). `pairwise`, `rearrange`
and `repeat` choose on all samples except a held-back part, which measures only their final sets. A
portfolio's members propose on one part; the held-back part, or the calibration `judge`, decides.

An iterative selector continues through files: rule `prune_step` reads the plan of the size before
and the sweep of the model that this plan leaves.
"""

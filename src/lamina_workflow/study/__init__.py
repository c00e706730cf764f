"""What the studies of a configuration require, as names.

- `requests`: the variants of all studies, and the plans, patches and benchmarks that they need,
- `sweeps`: the sweeps that the plans and maps need,
- `tables`: the files that each gathered table is made from,
- `handles`: short names of the variants, and how to resolve one from the last run.

The rules turn these lists into inputs and targets.
"""

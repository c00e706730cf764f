"""What the studies of a configuration ask for, as names.

- `requests`: the variants of all studies, and the plans, patches and benchmarks that they need,
- `sweeps`: the sweeps that the plans and maps need,
- `tables`: the files that each gathered table is made from,
- `handles`: short names of the variants, and what one of the last run stands for.

The rules turn these lists into inputs and targets.
"""

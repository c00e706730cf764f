"""What the studies of a configuration ask for, as names; nothing here opens a result.

- `requests`: the variants of all studies, and the plans, patches and benchmarks that they need,
- `sweeps`: the sweeps that the plans and maps need,
- `tables`: the files that each gathered table is made from.

The rules turn these lists into inputs and targets.
"""

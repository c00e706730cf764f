"""What the studies of a configuration ask for, as names and paths; nothing here opens a result.

- `variant`: a base model with a plan of some size, a repair and a healing,
- `paths`: where the file of each thing stands under `results/`,
- `requests`: the variants of all studies, and the plans, patches and benchmarks that they need,
- `sweeps`: the sweeps that the plans and maps need,
- `tables`: the files that each gathered table is made from.

The rules turn these lists into inputs and targets.
"""

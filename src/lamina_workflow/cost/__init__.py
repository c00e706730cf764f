"""The cost of a study before it runs: jobs, arithmetic, time, memory and disk.

- `work` counts layer-tokens and FLOP of each kind of job, for the engine and for the naive way,
- `searches` counts those of a search from the rounds that its strategy foresees,
- `estimate` sums them over all jobs of a configuration, with memory and disk, as rule
  `estimate_cost` writes them,
- `forecast` turns them into time by a rate in TFLOP/s, which it can measure on this machine.
"""

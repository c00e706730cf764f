"""What a study will take: jobs, arithmetic, time, memory and disk, before it runs.

- `work` counts layer-tokens and FLOP of each kind of job, by the engine and the naive way,
- `searches` counts those of a search from the rounds that its strategy foresees,
- `estimate` adds them up over all jobs of a configuration, with memory and disk, as rule
  `estimate_cost` writes them,
- `forecast` turns them into time by a rate in TFLOP/s, which it can measure on this machine.
"""

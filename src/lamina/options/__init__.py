"""What can be written of a model, a calibration, a metric, a strategy, a repair, a healing.

Pydantic models whose fields are keys of the configuration, and arguments in a notebook:

- `entry`: what all classes share; `explain`: errors in words, with the nearest key,
- `models`, `calibrations`, `selectors`, `repairs`, `healings`, `benchmarks`, `diagnoses`,
- `metrics`: what the relevance metrics declare.

The options of one strategy or method stand beside its code, and are read without importing torch.
"""

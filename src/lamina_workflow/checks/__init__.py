"""Check a configuration against itself and its files, so that faults are refused before any job.

- `load` reads a configuration, fills in what is left open, and calls the checks,
- `names` checks that every name is defined, `held_out` that no test data is used to calibrate,
- `variants` checks that a study's repairs, healings and benchmarks fit its selectors,
- `removals` checks how many units are removed, and translates sizes such as 6 GB into units,
- `files` checks models, texts and questions on disk, `cached` models of the hub when offline,
- `advice` warns of studies that can run but will show little.

Pydantic checks single entries; see `lamina_workflow.config`.
"""

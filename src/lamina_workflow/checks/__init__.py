"""A configuration checked against itself and its files, so that faults are refused before any job.

- `load` reads a configuration, fills in what is left open, and calls the checks,
- `names` checks that every name is defined, `held_out` that no test data calibrates,
- `variants` checks that repairs, healings and benchmarks of a study fit its selectors,
- `removals` checks how many units are removed, and finds what sizes such as 6 GB come to,
- `files` checks models, texts and questions on disk, `cached` models of the hub when offline,
- `advice` names what may run but will hardly tell anything.

Pydantic checks single entries; see `lamina_workflow.config`.
"""

"""The configuration: one class per section and method, whose fields are the keys.

- `entry`: what all classes share; `explain`: errors in words, with the nearest key,
- `text`: YAML files and where a key stands in them, with `yaml_loader` and `yaml_errors`,
- `models`, `calibrations`, `selectors`, `repairs`, `healings`, `benchmarks`, `studies`: the
  sections; `configuration`: the whole,
- `metrics`: what the relevance metrics declare,
- `replicates`: entries that stand for several.

Options of a strategy or method stand beside its code, and are read without importing torch.
`lamina.checks` holds entries against each other and against files.
"""

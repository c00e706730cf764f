"""The configuration of studies: its files, its keys, and entries that stand for several.

- `text`: YAML files and the lines of their keys, with `yaml_loader`,
- `configuration`: the whole, `studies`: its studies. The entries of all other sections are the
  classes of `lamina.options`,
- `replicates`: entries that stand for several.

`lamina_workflow.checks` compares entries with each other and with files.
"""

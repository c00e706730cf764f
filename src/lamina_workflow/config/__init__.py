"""The configuration of studies: its files, its keys, and entries that stand for several.

- `text`: YAML files and where a key stands in them, with `yaml_loader`,
- `configuration`: the whole, `studies`: its studies; entries of all other sections are the classes
  of `lamina.options`,
- `replicates`: entries that stand for several.

`lamina_workflow.checks` holds entries against each other and against files.
"""

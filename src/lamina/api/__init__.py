"""The functions of `lamina`: a study in a notebook, without the workflow.

- `inputs`: a model (`open_model`) and its calibrations (`prepare`),
- `selection`: `select` chooses what is removed,
- `variants`: what came of it, a `PrunedModel`; `repair` and `heal` change it,
- `outcome`: `evaluate` measures variants, `export` writes one.

The options are the keys of the configuration (config/README.md), checked by the same classes. Each
function calls what a job of the workflow calls, so its numbers are those of the workflow.
docs/api.md shows a whole study.
"""

"""Repairs of a pruned model: they restore what the removed layers did, as far as a formula can.

    request = fitting.sort_plans(plans, depth, options)         # runs of removed units to repair
    groups = fitting.fit_plans(model, request, calibrations, weights, seed)
    tensors, rows = fitting.record_fits(request, groups, name)  # patch file, table `patches`

`methods` has one module for each repair; `protocol` says what such a module must contain. `fitting`
collects the statistics of all runs in one pass, fits each run, and measures three things: the
errors of the repaired stream token by token (`check`), the shape of the fitted map (`operators`),
and whether the loss on held-out documents rises (`harm`). `refit` fits run after run instead, and
`weighing` chooses how much general text counts in a fit. `patch` is the file of fitted tensors;
`patch_store` keeps the patches of a search.
"""

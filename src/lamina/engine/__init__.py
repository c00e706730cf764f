"""Passes over a model that carry many candidates at once, and taps that hand out its streams.

A sweep, from the samples to the numbers:

    packing       samples become lines: a context that rows share runs once
    candidates    models without some units become a tree of streams, which fork where they differ
    forking       wrappers around layers and head take a tree through one forward pass
    session       measures candidates on samples in such passes, within a budget of memory
    readings      reads log-likelihoods and distances off the logits, on the device
    scores        gathers them by candidate and sample, as the columns of table `sweeps`
    proof         compares all this with the plain model, before a number is used
    sweep         opens a proven session; `sweep_units` measures the removal of every unit

Without candidates: `taps` runs a model and hands its streams to a consumer batch by batch,
`sources` does so over several calibrations. Their consumers are `capture` (distances between
boundaries) and `moments` (sums for repairs). `weights` measures units by weights and gradients.

What a pass takes: `budgets` (fixed bytes), `footprint` (predicted bytes), `memory` (what
`tokens: auto` means), `batches` (padding, and halving when memory runs out). `check` proves a model
before a study.
"""
